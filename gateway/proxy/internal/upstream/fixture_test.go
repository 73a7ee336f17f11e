// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/resource"
)

const waitTimeout = 20 * time.Second

func settings() *Settings {
	return &Settings{
		Balance:     balance.Settings{EjectAfter: 100, EjectFor: time.Second, EjectForMost: time.Second},
		DialTimeout: waitTimeout, HandshakeTimeout: waitTimeout, IdleTimeout: waitTimeout,
		MaxIdlePerEndpoint: 8, MaxResponseHeaderBytes: 4096, ConnectAttempts: 3,
	}
}

func backendAt(settings *Settings, with *TLS, addresses ...string) *Backend {
	var list []balance.Address
	for _, address := range addresses {
		list = append(list, balance.Address{AddrPort: netip.MustParseAddrPort(address)})
	}
	set := balance.NewSet(&settings.Balance, list, nil, time.Now())
	return New("backend", &resource.Backend{}, settings, Connection{Set: set, TLS: with, Current: Transports{}})
}

func newRequest(t *testing.T, method, body string) *http.Request {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), method, "http://shop.example.com/cart", strings.NewReader(body))
	if body == "" {
		request.Body = nil
	}
	return request
}

func send(t *testing.T, b *Backend, request *http.Request, policy *Policy) (status int, body string, exchange Result, err error) {
	t.Helper()
	response, exchange, err := b.RoundTrip(request, policy)
	if err != nil {
		return 0, "", exchange, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), exchange, err
}

func must(t *testing.T, b *Backend, method, body string) string {
	t.Helper()
	status, text, _, err := send(t, b, newRequest(t, method, body), &Policy{})
	if err != nil || status != http.StatusOK {
		t.Fatalf("%s: status %d, %v", method, status, err)
	}
	return text
}

type server struct {
	address          string
	accepted, closed atomic.Int32
}

func serve(t *testing.T, handler http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	web := httptest.NewUnstartedServer(handler)
	web.Config.ConnState = s.count
	web.Start()
	t.Cleanup(web.Close)
	s.address = web.Listener.Addr().String()
	return s
}

func (s *server) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.accepted.Add(1)
	case http.StateClosed:
		s.closed.Add(1)
	}
}

// script runs each for every connection, with its number and parsed requests.
func script(t *testing.T, each func(number int, conn net.Conn, next func() (*http.Request, bool))) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for number := 1; ; number++ {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(t.Context(), func() { _ = conn.Close() })
			go func() {
				defer conn.Close()
				reader := bufio.NewReader(conn)
				each(number, conn, func() (*http.Request, bool) {
					request, err := http.ReadRequest(reader)
					return request, err == nil
				})
			}()
		}
	}()
	return listener.Addr().String()
}

func write(conn net.Conn, text string) { _, _ = io.WriteString(conn, text) }

const (
	fine  = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
	other = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother"
)

func await(t *testing.T, what string, met func() bool) {
	t.Helper()
	for deadline := time.Now().Add(waitTimeout); !met(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout waiting for: %s", what)
		}
	}
}
