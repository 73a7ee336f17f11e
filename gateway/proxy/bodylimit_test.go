// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func bodyLimit(bytes uint64) *resource.Filter {
	return &resource.Filter{Kind: &resource.Filter_BodyLimit{BodyLimit: &resource.BodyLimit{Bytes: bytes}}}
}

// TestBodyLimit checks that the backend gets no complete body beyond the limit.
func TestBodyLimit(t *testing.T) {
	port := freePort(t)
	var whole, longest atomic.Int64
	read := func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		longest.Store(max(longest.Load(), n))
		if err == nil {
			whole.Add(1)
		}
		fmt.Fprint(w, n)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(read))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	h2c := backend("h2c", server.Listener.Addr().String())
	h2c[0].GetBackend().Protocol = resource.Backend_H2C
	const most = 100_000
	var log syncBuffer
	f := start(t, func(s *Settings) {
		s.MaxBodyBytes = 3 * most
		s.AccessLog = slog.New(slog.NewJSONHandler(&log, nil))
	}, all(one(httpListener("l", port, nil), routes("r", "l", nil,
		toward("/some", "a", bodyLimit(most)), toward("/h2c", "h2c", bodyLimit(most)),
		toward("/two", "a", bodyLimit(2*most), bodyLimit(most), bodyLimit(2*most), bodyLimit(0)),
		toward("/none", "a", bodyLimit(0)), toward("/huge", "a", bodyLimit(1<<63)),
	)), backend("a", serve(t, read)), h2c)...)
	denied := 0
	for _, test := range []struct {
		path   string
		bytes  int
		status int
	}{
		{"/some", 0, 200}, {"/some", most, 200}, {"/some", most + 1, 413}, {"/some", 2 * most, 413},
		{"/h2c", most, 200}, {"/h2c", most + 1, 413},
		{"/two", most, 200}, {"/two", most + 1, 413}, {"/none", 2 * most, 200}, {"/huge", 2 * most, 200},
	} {
		for protocol, c := range both(t, port) {
			for _, measured := range []bool{true, false} {
				text := strings.NewReader(strings.Repeat("x", test.bytes))
				var body io.Reader = text
				if !measured {
					body = struct{ io.Reader }{text}
				}
				before := whole.Load()
				response, err := c.Post("http://a.example.com"+test.path, "text/plain", body)
				if err != nil {
					t.Errorf("%s, %d bytes over %s, length known %v: %v", test.path, test.bytes, protocol, measured, err)
					continue
				}
				answer, _ := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if response.StatusCode != test.status || response.Proto != protocol {
					t.Errorf("%s, %d bytes over %s, length known %v: %d %s; want %d", test.path, test.bytes, protocol, measured, response.StatusCode, response.Proto, test.status)
				}
				if test.status == 200 && string(answer) != fmt.Sprint(test.bytes) {
					t.Errorf("%s over %s: the backend read %s bytes, want %d", test.path, protocol, answer, test.bytes)
				}
				if test.status == 413 {
					denied++
					if whole.Load() != before {
						t.Errorf("%s, %d bytes over %s, length known %v: the backend received a complete request", test.path, test.bytes, protocol, measured)
					}
				}
			}
		}
	}
	awaitMetric(t, f, fmt.Sprintf(`millrace_proxy_denied_total{reason="body_size"} %d`, denied))
	for deadline := time.Now().Add(10 * time.Second); strings.Count(log.String(), "exceeds the rule's limit") < denied && time.Now().Before(deadline); {
		pause(t.Context(), time.Millisecond)
	}
	if found := strings.Count(log.take(), "exceeds the rule's limit"); found != denied {
		t.Errorf("%d denials in the log; want %d", found, denied)
	}
	if longest.Load() > 2*most {
		t.Errorf("the backend received %d bytes", longest.Load())
	}
}

// TestBodyLimitSendsNoContinue checks rejections before the body (RFC 9110, section 10.1.1).
func TestBodyLimitSendsNoContinue(t *testing.T) {
	port := freePort(t)
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a", bodyLimit(100)))),
		backend("a", serve(t, echo("a"))))...)
	conn, err := net.Dial("tcp", client127(port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 101\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Fatalf("%v, %v; want 413", response, err)
	}
}

// TestTooLongBodiesAreNoEndpointFailure checks that clients cannot cause ejection of endpoints.
func TestTooLongBodiesAreNoEndpointFailure(t *testing.T) {
	port := freePort(t)
	start(t, func(s *Settings) { s.Upstream.Balance.EjectAfter, s.Upstream.Balance.EjectFor = 1, time.Hour }, all(
		one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a", bodyLimit(100)))),
		backend("a", serve(t, echo("a")), serve(t, echo("b"))))...)
	for protocol, c := range both(t, port) {
		for range 10 {
			response, err := c.Post("http://a.example.com/", "text/plain", struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 200))})
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusRequestEntityTooLarge {
				t.Errorf("over %s: %d; want 413", protocol, response.StatusCode)
			}
		}
	}
	reached := map[string]bool{}
	for range 60 {
		reached[get(t, client(t, port, nil), "http://a.example.com/").Header.Get("X-Backend")] = true
	}
	if len(reached) != 2 {
		t.Errorf("only %v reached a backend", reached)
	}
}
