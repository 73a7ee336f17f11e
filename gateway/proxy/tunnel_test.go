// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// serveBytes reads to the end before it responds, which requires half-closed connections.
func serveBytes(t *testing.T, name string, config *tls.Config) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				got, err := io.ReadAll(conn)
				if err != nil {
					return
				}
				fmt.Fprintf(conn, "%s got %d bytes: %.20s", name, len(got), got)
			}()
		}
	}()
	return listener.Addr().String()
}

func bytesBackend(name, address string) []*resource.Resource {
	resources := backend(name, address)
	resources[0].GetBackend().Protocol = resource.Backend_TCP
	return resources
}

func bytesListener(name string, port uint32, protocol resource.Listener_Protocol, host string, certificates ...string) *resource.Resource {
	r := tlsListener(name, port, hostname(host), certificates...)
	r.GetListener().Protocol = protocol
	return r
}

// exchangeBytes sends text, closes the sending direction and returns the response.
func exchangeBytes(t *testing.T, port uint32, config *tls.Config, text string) (string, error) {
	t.Helper()
	conn, err := tls.Dial("tcp", client127(port), config)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	if err := conn.CloseWrite(); err != nil {
		return "", err
	}
	got, err := io.ReadAll(conn)
	return string(got), err
}

func TestTunnels(t *testing.T) {
	port, ours, theirs := freePort(t), newCA(t), newCA(t)
	again := bytesBackend("again", serveBytes(t, "again", &tls.Config{Certificates: []tls.Certificate{theirs.pair("again.example.com")}}))
	again[0].GetBackend().Tls = &resource.BackendTLS{Hostname: "again.example.com", CertificateAuthorities: []string{"theirs"}}
	start(t, nil, all(
		one(
			ours.resource("c", "*.example.com"), theirs.authority("theirs"),
			bytesListener("lp", port, resource.Listener_TLS_PASSTHROUGH, "*.pass.example.com"),
			bytesListener("lt", port, resource.Listener_TLS_TERMINATE, "end.example.com", "c"),
			bytesListener("la", port, resource.Listener_TLS_TERMINATE, "again.example.com", "c"),
			tlsListener("lh", port, hostname("http.example.com"), "c"),
			routes("rp", "lp", hostname("a.pass.example.com"), toward("", "pass")),
			routes("rd", "lp", hostname("dead.pass.example.com"), toward("", "dead")),
			routes("rt", "lt", nil, toward("", "end")), routes("ra", "la", nil, toward("", "again")),
			routes("rh", "lh", nil, toward("/", "http")),
		),
		bytesBackend("pass", serveBytes(t, "pass", &tls.Config{Certificates: []tls.Certificate{theirs.pair("a.pass.example.com")}})),
		bytesBackend("dead", client127(freePort(t))),
		bytesBackend("end", serveBytes(t, "end", nil)), again, backend("http", serve(t, echo("http"))),
	)...)
	long := strings.Repeat("0123456789", 100_000)
	for _, tc := range []struct {
		host, text, want string
		authority        *ca
	}{
		{"a.pass.example.com", "hello", "pass got 5 bytes: hello", theirs},
		{"A.Pass.Example.com", long, "pass got 1000000 bytes: 01234567890123456789", theirs},
		{"end.example.com", "hello", "end got 5 bytes: hello", ours},
		{"end.example.com", long, "end got 1000000 bytes: 01234567890123456789", ours},
		{"again.example.com", "hello", "again got 5 bytes: hello", ours},
	} {
		got, err := exchangeBytes(t, port, &tls.Config{ServerName: tc.host, RootCAs: tc.authority.pool()}, tc.text)
		if err != nil || got != tc.want {
			t.Errorf("%s: %q, %v; want %q", tc.host, got, err, tc.want)
		}
	}
	config := &tls.Config{ServerName: "a.pass.example.com", RootCAs: theirs.pool()}
	for range 150 {
		config.NextProtos = append(config.NextProtos, strings.Repeat("p", 200))
	}
	if got, err := exchangeBytes(t, port, config, "x"); err != nil || got != "pass got 1 bytes: x" {
		t.Errorf("long ClientHello: %q, %v", got, err)
	}
	for _, protocol := range []func(*http.Protocols, bool){(*http.Protocols).SetHTTP1, (*http.Protocols).SetHTTP2} {
		if got := get(t, client(t, port, &tls.Config{RootCAs: ours.pool()}, protocol), "https://http.example.com/"); got.Header.Get("X-Backend") != "http" {
			t.Errorf("HTTPS on the same port: %d from %q", got.StatusCode, got.Header.Get("X-Backend"))
		}
	}
	for _, host := range []string{"b.pass.example.com", "dead.pass.example.com", "other.example.org", ""} {
		if got, err := exchangeBytes(t, port, &tls.Config{ServerName: host, InsecureSkipVerify: true}, "x"); err == nil {
			t.Errorf("%q: response %q; want an error", host, got)
		} else if alert := tls.AlertError(0); errors.As(err, &alert) || strings.Contains(err.Error(), "remote error") {
			t.Errorf("%q: %v; want the connection closed without an alert", host, err)
		}
	}
	// HTTP requests for the host of a tunnel are misdirected.
	c := client(t, port, &tls.Config{RootCAs: ours.pool(), ServerName: "http.example.com"})
	if got := get(t, c, "https://http.example.com/", "Host: end.example.com"); got.StatusCode != http.StatusMisdirectedRequest {
		t.Errorf("request for the host of a tunnel: %d; want 421", got.StatusCode)
	}
}

// TestTunnelsCount checks that tunnels beyond the client's memory limit are closed.
func TestTunnelsCount(t *testing.T) {
	const most = 10
	port, authority := freePort(t), newCA(t)
	start(t, func(s *Settings) {
		// The rest fits a ClientHello but not a connection.
		s.MaxBytes, s.MaxClientBytes = 0, most*(admission.ConnectionBytes+tunnelBytes)+admission.ConnectionBytes/2
	}, all(
		one(authority.resource("c", "a.example.com"), bytesListener("l", port, resource.Listener_TLS_TERMINATE, "a.example.com", "c"),
			routes("r", "l", nil, toward("", "a"))),
		bytesBackend("a", serveBytes(t, "a", nil)))...)
	config := &tls.Config{ServerName: "a.example.com", RootCAs: authority.pool()}
	var conns []net.Conn
	for range 2 * most {
		if conn, err := tls.Dial("tcp", client127(port), config); err == nil {
			defer conn.Close()
			conns = append(conns, conn)
		}
	}
	var open []net.Conn
	for _, conn := range conns {
		if !isClosed(conn, 200*time.Millisecond) {
			open = append(open, conn)
		}
	}
	if len(open) != most {
		t.Fatalf("%d tunnels are open, want %d", len(open), most)
	}
	_ = open[0].Close()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		got, err := exchangeBytes(t, port, config, "x")
		if err == nil && got == "a got 1 bytes: x" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the end of one tunnel another receives %q, %v", got, err)
		}
	}
}

func TestTunnelIdleTimeout(t *testing.T) {
	port, authority := freePort(t), newCA(t)
	start(t, func(s *Settings) { s.IdleTimeout, s.HeaderTimeout = 500*time.Millisecond, time.Second }, all(
		one(authority.resource("c", "a.example.com"), bytesListener("l", port, resource.Listener_TLS_TERMINATE, "a.example.com", "c"),
			routes("r", "l", nil, toward("", "a"))),
		bytesBackend("a", serveBytes(t, "a", nil)),
	)...)
	conn, err := tls.Dial("tcp", client127(port), &tls.Config{ServerName: "a.example.com", RootCAs: authority.pool()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || timedOut(err) {
		t.Errorf("idle tunnel: %v; want it closed", err)
	}
	silent, err := net.Dial("tcp", client127(port))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_ = silent.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := silent.Read(make([]byte, 1)); err == nil || timedOut(err) {
		t.Errorf("silent connection: %v; want it closed", err)
	}
}

func timedOut(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// TestTunnelLoop checks that a tunnel back to the proxy's own port ends after a few rounds.
func TestTunnelLoop(t *testing.T) {
	authority := newCA(t)
	for name, rounds := range map[string]int{"passed through": maxHops, "made anew": 1} {
		t.Run(name, func(t *testing.T) {
			protocol := resource.Listener_TLS_PASSTHROUGH
			if name == "made anew" {
				protocol = resource.Listener_TLS_TERMINATE
			}
			port := freePort(t)
			again := bytesBackend("again", client127(port))
			if protocol == resource.Listener_TLS_TERMINATE {
				again[0].GetBackend().Tls = &resource.BackendTLS{Hostname: "a.example.com", CertificateAuthorities: []string{"authority"}}
			}
			f := start(t, nil, all(
				one(authority.resource("c", "a.example.com"), authority.authority("authority"),
					bytesListener("l", port, protocol, "a.example.com", "c"), routes("r", "l", nil, toward("", "again"))),
				again)...)
			got, _ := exchangeBytes(t, port, &tls.Config{ServerName: "a.example.com", RootCAs: authority.pool()}, "x")
			if got != "" {
				t.Errorf("response %q through a loop", got)
			}
			_, text := status(t, f.Admin(), "/metrics")
			if want := fmt.Sprintf("millrace_proxy_connections_total %d\n", rounds+1); !strings.Contains(text, want) {
				t.Errorf("want %s%s", want, text)
			}
			if want := "millrace_proxy_tunnels_total{listener=\"l\",result=\"loop\"} 1\n"; !strings.Contains(text, want) {
				t.Errorf("want %s%s", want, text)
			}
			forgotten(t, f)
		})
	}
}

func forgotten(t *testing.T, f *fixture) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		f.loops.mutex.Lock()
		open, made := len(f.loops.open), len(f.loops.visited)
		f.loops.mutex.Unlock()
		if open+made == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d and %d connections remain open", open, made)
		}
	}
}

// TestTunnelLoopOfTwo checks that a loop through two proxies ends after eight rounds in each.
func TestTunnelLoopOfTwo(t *testing.T) {
	ports := []uint32{freePort(t), freePort(t)}
	var both []*fixture
	for i, port := range ports {
		both = append(both, start(t, nil, all(
			one(bytesListener("l", port, resource.Listener_TLS_PASSTHROUGH, "a.example.com"), routes("r", "l", nil, toward("", "other"))),
			bytesBackend("other", client127(ports[1-i])))...))
	}
	if got, err := exchangeBytes(t, ports[0], &tls.Config{ServerName: "a.example.com", InsecureSkipVerify: true}, "x"); err == nil {
		t.Errorf("response %q through a loop", got)
	}
	for i, want := range []int{maxHops + 1, maxHops} {
		_, text := status(t, both[i].Admin(), "/metrics")
		if want := fmt.Sprintf("millrace_proxy_connections_total %d\n", want); !strings.Contains(text, want) {
			t.Errorf("want %s%s", want, text)
		}
		forgotten(t, both[i])
	}
}
