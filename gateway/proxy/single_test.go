// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// timeWaitPorts counts the local ports in TIME_WAIT for an address.
func timeWaitPorts(t *testing.T, address string) (count int) {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	var number int
	if _, err := fmt.Sscan(port, &number); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	// State 06 is TIME_WAIT.
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 3 && strings.HasSuffix(fields[2], fmt.Sprintf(":%04X", number)) && fields[3] == "06" {
			count++
		}
	}
	return count
}

// TestPortsAreFreeAgain checks for no port in TIME_WAIT. Otherwise 470 requests per second would exhaust the
// ports of an endpoint.
func TestPortsAreFreeAgain(t *testing.T) {
	port := freePort(t)
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/endless" {
			for r.Context().Err() == nil {
				_, _ = w.Write(make([]byte, 10_000))
			}
		}
	})
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", address))...)
	c := client(t, port, nil)
	for range 50 {
		if got := send(t, c, http.MethodPut, "http://a/", "body", "Expect: 100-continue"); got.StatusCode != http.StatusOK {
			t.Fatalf("Expect: status %d", got.StatusCode)
		}
		if got := get(t, c, "http://a/", "Connection: Upgrade", "Upgrade: websocket"); got.StatusCode != http.StatusOK {
			t.Fatalf("Upgrade ignored by the backend: status %d", got.StatusCode)
		}
		response, err := c.Get("http://a/endless")
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	if got := timeWaitPorts(t, address); got > 10 {
		t.Errorf("%d ports in TIME-WAIT after 150 finished requests, want at most 10", got)
	}
}

func switches(t *testing.T, from string, port uint32) (net.Conn, int) {
	t.Helper()
	conn := dialFrom(t, from, port)
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return conn, response.StatusCode
}

// TestUpgradesAreBounded checks that upgraded connections use at most half of an endpoint's requests, and a
// quarter per client.
func TestUpgradesAreBounded(t *testing.T) {
	port := freePort(t)
	address := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "echo")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.Close()
	})
	f := start(t, func(s *Settings) { s.Upstream.Balance.MaxRequests, s.Upstream.Balance.MaxPorts = 8, 10 },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", address))...)
	var open []net.Conn
	try := func(from string, want int) {
		t.Helper()
		conn, status := switches(t, from, port)
		if status != want {
			t.Fatalf("upgrade from %s: status %d, want %d", from, status, want)
		}
		if status == http.StatusSwitchingProtocols {
			open = append(open, conn)
		}
	}
	for _, each := range []struct {
		from string
		want int
	}{{"127.0.0.2", 101}, {"127.0.0.2", 101}, {"127.0.0.2", 503}, {"127.0.0.3", 101}, {"127.0.0.3", 101}, {"127.0.0.4", 503}} {
		try(each.from, each.want)
	}
	if got := get(t, client(t, port, nil), "http://a/"); got.StatusCode != http.StatusOK {
		t.Errorf("other request: status %d, want 200", got.StatusCode)
	}
	if _, text := status(t, f.Admin(), "/metrics"); !strings.Contains(text, `millrace_proxy_load_shed_total{kind="backend_connection"} 2`) {
		t.Error("refused connections are not counted")
	}
	for _, want := range []int{101, 101, 503} {
		_ = open[0].Close()
		open = open[1:]
		for deadline := time.Now().Add(10 * time.Second); f.table.Load().backends["a"].value.Set.All()[0].Active() > 3; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("a finished upgrade still occupies its slot")
			}
		}
		try("127.0.0.5", want)
	}
	for _, conn := range open {
		_ = conn.Close()
	}
}
