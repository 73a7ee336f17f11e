// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// answers is a backend that answers each request with a text, as it stands.
func answers(t *testing.T, text func(target string) string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go func() {
				for reader := bufio.NewReader(conn); ; {
					request, err := http.ReadRequest(reader)
					if err != nil {
						return
					}
					_, _ = io.WriteString(conn, text(request.RequestURI))
				}
			}()
		}
	}()
	return listener.Addr().String()
}

// A backend that answers with numbers nobody has registered makes a series for each class.
func TestUnknownStatusesShareSeries(t *testing.T) {
	port := freePort(t)
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
		backend("a", answers(t, func(target string) string {
			return "HTTP/1.1 " + target[1:] + " x\r\nContent-Length: 0\r\n\r\n"
		})))...)
	c := client(t, port, nil)
	for status := 200; status < 1000; status++ {
		if status == http.StatusNoContent || status == http.StatusNotModified {
			continue
		}
		if got := get(t, c, fmt.Sprint("http://a/", status)); got.StatusCode != status {
			t.Fatalf("status %d became %d", status, got.StatusCode)
		}
	}
	known := 0
	for status := 200; status < 1000; status++ {
		if http.StatusText(status) != "" && status != http.StatusNoContent && status != http.StatusNotModified {
			known++
		}
	}
	// What is registered, 499 which proxies use, and eight classes from 2xx to 9xx.
	known += 1 + 8
	for name, got := range map[string]int{
		"requests": testutil.CollectAndCount(f.metrics.requests), "attempts": testutil.CollectAndCount(f.metrics.attempts),
	} {
		if got > known {
			t.Errorf("%d series of %s; want %d at most", got, name, known)
		}
	}
	if got := testutil.ToFloat64(f.metrics.requests.WithLabelValues("l", "7xx")); got != 100 {
		t.Errorf("%v requests of class 7xx; want 100", got)
	}
}
