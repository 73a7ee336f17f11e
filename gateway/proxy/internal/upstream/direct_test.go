// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// TestPooled checks that sequential requests, also with a body, share a connection.
func TestPooled(t *testing.T) {
	for name, test := range map[string]struct{ method, body string }{
		"without a body": {http.MethodGet, ""},
		"HEAD":           {http.MethodHead, ""},
		"with a body":    {http.MethodPost, "body"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				fmt.Fprint(w, "fine")
			})
			b := backendAt(settings(), nil, s.address)
			for range 20 {
				must(t, b, test.method, test.body)
			}
			if n := s.accepted.Load(); n != 1 {
				t.Errorf("%d connections for sequential requests, want 1", n)
			}
		})
	}
}

// TestPoolLimits checks the limit and timeout of idle connections.
func TestPoolLimits(t *testing.T) {
	var arrived sync.WaitGroup
	arrived.Add(5)
	s := serve(t, func(http.ResponseWriter, *http.Request) {
		arrived.Done()
		arrived.Wait()
	})
	limits := settings()
	limits.MaxIdlePerEndpoint, limits.IdleTimeout = 2, 50*time.Millisecond
	b := backendAt(limits, nil, s.address)
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() { must(t, b, http.MethodGet, "") })
	}
	all.Wait()
	await(t, "three idle connections closed", func() bool { return s.closed.Load() >= 3 })
	await(t, "the others after their time", func() bool { return s.closed.Load() == 5 })
	direct := b.transport.direct
	await(t, "no connections to sweep", func() bool {
		direct.mutex.Lock()
		defer direct.mutex.Unlock()
		return direct.sweep == nil && len(direct.idle) == 0
	})
}

// TestStale checks that no request fails if the endpoint closes an idle connection.
func TestStale(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		t.Run(method, func(t *testing.T) {
			closed := make(chan struct{}, 1)
			address := script(t, func(_ int, conn net.Conn, next func() (*http.Request, bool)) {
				next()
				write(conn, fine)
				_ = conn.Close()
				closed <- struct{}{}
			})
			b := backendAt(settings(), nil, address)
			for range 3 {
				must(t, b, method, "")
				<-closed
			}
		})
	}
}

// TestClosedInUse checks that only repeatable requests are retried if a reused connection is closed.
func TestClosedInUse(t *testing.T) {
	for method, want := range map[string]int32{http.MethodGet: 3, http.MethodDelete: 3, http.MethodPost: 2, http.MethodPatch: 2} {
		t.Run(method, func(t *testing.T) {
			var seen atomic.Int32
			address := script(t, func(number int, conn net.Conn, next func() (*http.Request, bool)) {
				for requests := 0; ; requests++ {
					if _, ok := next(); !ok {
						return
					}
					seen.Add(1)
					if number == 1 && requests == 1 {
						return
					}
					write(conn, fine)
				}
			})
			b := backendAt(settings(), nil, address)
			must(t, b, method, "")
			_, _, _, err := send(t, b, newRequest(t, method, ""), &Policy{})
			if (err == nil) != (want == 3) || seen.Load() != want {
				t.Errorf("the endpoint received %d requests, want %d; %v", seen.Load(), want, err)
			}
		})
	}
}

// closingConn calls beforeWrite before each Write.
type closingConn struct {
	*net.TCPConn
	beforeWrite func()
}

func (c *closingConn) Write(b []byte) (int, error) {
	c.beforeWrite()
	return c.TCPConn.Write(b)
}

// TestClosedBeforeWrite checks that any request is retried, and seen once, if the endpoint closed the connection
// after the check of the idle connection.
func TestClosedBeforeWrite(t *testing.T) {
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	trusts := &TLS{
		Resource:    &resource.BackendTLS{Hostname: "example.com"},
		Authorities: []*Authority{{Certificates: []*x509.Certificate{web.Certificate()}}},
	}
	for name, test := range map[string]struct {
		method, body, expect string
		with                 *TLS
		fails                bool
	}{
		"GET":          {method: http.MethodGet},
		"POST":         {method: http.MethodPost},
		"POST, body":   {method: http.MethodPost, body: "body"},
		"POST, TLS":    {method: http.MethodPost, body: "body", with: trusts},
		"POST, expect": {method: http.MethodPost, body: "body", expect: "100-continue"},
		"PUT":          {method: http.MethodPut, body: "body"},
		"POST, long":   {method: http.MethodPost, body: strings.Repeat("x", maxShortBody+1), fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			var seen, connections atomic.Int32
			end, ended := make(chan struct{}, 1), make(chan struct{}, 1)
			address := script(t, func(number int, conn net.Conn, _ func() (*http.Request, bool)) {
				connections.Add(1)
				plain := conn
				if test.with != nil {
					conn = tls.Server(conn, &tls.Config{Certificates: web.TLS.Certificates})
				}
				reader := bufio.NewReader(conn)
				for {
					request, err := http.ReadRequest(reader)
					if err != nil {
						return
					}
					if request.Header.Get("Expect") != "" {
						write(conn, "HTTP/1.1 100 Continue\r\n\r\n")
					}
					_, _ = io.Copy(io.Discard, request.Body)
					seen.Add(1)
					write(conn, fine)
					if number == 1 {
						<-end
						_ = plain.Close()
						ended <- struct{}{}
						return
					}
				}
			})
			b := backendAt(settings(), test.with, address)
			var isIdle atomic.Bool
			plain := dialPlain(newDialer(settings()))
			dialTest := func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := plain(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return &closingConn{conn.(*net.TCPConn), func() {
					if isIdle.Swap(false) {
						end <- struct{}{}
						<-ended
					}
				}}, nil
			}
			if b.transport.direct.dial = dialTest; test.with != nil {
				b.transport.direct.dial = dialTLS(dialerFunc(dialTest), test.with.config(nil), waitTimeout)
			}
			must(t, b, test.method, "")
			isIdle.Store(true)
			request := newRequest(t, test.method, test.body)
			if test.expect != "" {
				request.Header.Set("Expect", test.expect)
			}
			_, _, _, err := send(t, b, request, &Policy{})
			want := int32(2)
			if test.fails {
				want = 1
			}
			if (err != nil) != test.fails || seen.Load() != want || connections.Load() != want {
				t.Errorf("the endpoint received %d requests on %d connections; %v", seen.Load(), connections.Load(), err)
			}
		})
	}
}

type dialerFunc func(ctx context.Context, network, address string) (net.Conn, error)

func (d dialerFunc) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return d(ctx, network, address)
}

// TestExpect checks requests with "Expect: 100-continue" (RFC 9110, section 10.1.1).
func TestExpect(t *testing.T) {
	const proceed = "HTTP/1.1 100 Continue\r\n\r\n"
	for name, test := range map[string]struct {
		// before is sent before the body, after then.
		before, after string
		informed      int
		wantsBody     bool
		connections   int32
	}{
		"continue":                 {before: proceed, after: fine, informed: 1, wantsBody: true, connections: 1},
		"early hints and continue": {before: "HTTP/1.1 103 Early Hints\r\n\r\n" + proceed, after: fine, informed: 2, wantsBody: true, connections: 1},
		"final":                    {before: "HTTP/1.1 401 Unauthorized\r\nContent-Length: 4\r\n\r\nfine", connections: 2},
		"silence":                  {after: fine, wantsBody: true, connections: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var connections atomic.Int32
			bodies := make(chan string, 2)
			address := script(t, func(_ int, conn net.Conn, next func() (*http.Request, bool)) {
				connections.Add(1)
				for {
					request, ok := next()
					if !ok {
						return
					}
					write(conn, test.before)
					if test.wantsBody {
						body, _ := io.ReadAll(request.Body)
						bodies <- string(body)
					}
					write(conn, test.after)
				}
			})
			b := backendAt(settings(), nil, address)
			for range 2 {
				request := newRequest(t, http.MethodPost, "body")
				request.Header.Set("Expect", "100-continue")
				informed := 0
				_, text, _, err := send(t, b, request, &Policy{Informational: func(int, http.Header) error {
					informed++
					return nil
				}})
				if err != nil || text != "fine" || informed != test.informed {
					t.Errorf("response %q, %d informational, %v", text, informed, err)
				}
				if test.wantsBody {
					if body := <-bodies; body != "body" {
						t.Errorf("body = %q", body)
					}
				}
			}
			if n := connections.Load(); n != test.connections {
				t.Errorf("%d connections; want %d", n, test.connections)
			}
		})
	}
}

// corked is a connection that buffers writes until uncork.
type corked struct {
	net.Conn
	held []byte
	cork bool
}

func (c *corked) Write(b []byte) (int, error) {
	if !c.cork {
		return c.Conn.Write(b)
	}
	c.held = append(c.held, b...)
	return len(b), nil
}

func (c *corked) uncork(bytes int) {
	_, _ = c.Conn.Write(c.held[:len(c.held)-bytes])
	c.held, c.cork = c.held[len(c.held)-bytes:], false
}

// TestUnsolicitedResponse checks that unsolicited bytes, also buffered by crypto/tls, are not parsed as a
// response.
func TestUnsolicitedResponse(t *testing.T) {
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	trusts := &TLS{
		Resource:    &resource.BackendTLS{Hostname: "example.com"},
		Authorities: []*Authority{{Certificates: []*x509.Certificate{web.Certificate()}}},
	}
	config := &tls.Config{Certificates: web.TLS.Certificates}
	const (
		none = "HTTP/1.1 204 No Content\r\n\r\n"
		head = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
	)
	// Exactly fills the buffer of the reader above TLS.
	full := "HTTP/1.1 204 No Content\r\nX: " + strings.Repeat("x", 4096-len("HTTP/1.1 204 No Content\r\nX: \r\n\r\n")) + "\r\n\r\n"
	for name, test := range map[string]struct {
		method, body, response string
		// late is the number of unsolicited bytes that follow in time after the buffered rest.
		late    int
		records int
	}{
		"GET":                             {http.MethodGet, "", fine, 0, 2},
		"GET, one record":                 {http.MethodGet, "", fine, 0, 1},
		"HEAD":                            {http.MethodHead, "", head, 0, 2},
		"HEAD, one record":                {http.MethodHead, "", head, 0, 1},
		"204":                             {http.MethodGet, "", none, 0, 2},
		"304":                             {http.MethodGet, "", "HTTP/1.1 304 Not Modified\r\n\r\n", 0, 2},
		"full buffer":                     {http.MethodGet, "", full, 0, 1},
		"part of a record":                {http.MethodGet, "", none, 3, 2},
		"record truncated after its type": {http.MethodGet, "", none, len(other) + 20, 2},
		"POST":                            {http.MethodPost, "body", fine, 0, 2},
		"POST, 204":                       {http.MethodPost, "body", none, 0, 2},
		"POST, 204, one record":           {http.MethodPost, "body", none, 0, 1},
		"POST, part of a record":          {http.MethodPost, "body", none, 3, 2},
	} {
		for _, with := range []*TLS{nil, trusts} {
			if with == nil && test.late > 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s, TLS %v", name, with != nil), func(t *testing.T) {
				sent := make(chan struct{})
				address := script(t, func(number int, conn net.Conn, _ func() (*http.Request, bool)) {
					below := &corked{Conn: conn}
					conn = below
					if with != nil {
						conn = tls.Server(below, config)
					}
					reader := bufio.NewReader(conn)
					next := func() bool {
						request, err := http.ReadRequest(reader)
						if err == nil {
							_, err = io.Copy(io.Discard, request.Body)
						}
						return err == nil
					}
					if !next() {
						return
					}
					if number > 1 {
						for more := true; more; more = next() {
							write(conn, fine)
						}
						return
					}
					below.cork = true
					if test.records == 1 {
						write(conn, test.response+other)
					} else {
						write(conn, test.response)
						write(conn, other)
					}
					below.uncork(test.late)
					if next() {
						_, _ = below.Conn.Write(below.held)
					}
					close(sent)
				})
				b := backendAt(settings(), with, address)
				if _, _, _, err := send(t, b, newRequest(t, test.method, test.body), &Policy{}); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					if text := must(t, b, test.method, test.body); test.method != http.MethodHead && text != "fine" {
						t.Fatalf("response = %q", text)
					}
				}
				<-sent
			})
		}
	}
}

// TestEndOfResponse checks that a connection is not reused if the end of a response is unknown or unread.
func TestEndOfResponse(t *testing.T) {
	for name, test := range map[string]struct {
		response string
		unread   bool
		want     string
	}{
		"until EOF":         {response: "HTTP/1.1 200 OK\r\n\r\nfine", want: "fine"},
		"HTTP/1.0":          {response: "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\nfine", want: "fine"},
		"Connection: close": {response: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nfine", want: "fine"},
		"unread body":       {response: fine, unread: true},
	} {
		t.Run(name, func(t *testing.T) {
			var connections atomic.Int32
			address := script(t, func(_ int, conn net.Conn, next func() (*http.Request, bool)) {
				connections.Add(1)
				if _, ok := next(); ok {
					write(conn, test.response)
				}
				if test.want == "" {
					next()
				}
			})
			b := backendAt(settings(), nil, address)
			for range 2 {
				response, _, err := b.RoundTrip(newRequest(t, http.MethodGet, ""), &Policy{})
				if err != nil {
					t.Fatal(err)
				}
				if !test.unread {
					text, err := io.ReadAll(response.Body)
					if err != nil || string(text) != test.want {
						t.Errorf("body = %q, %v", text, err)
					}
				}
				_ = response.Body.Close()
				if _, err := response.Body.Read(make([]byte, 1)); err == nil {
					t.Error("read from a closed body succeeded")
				}
			}
			if n := connections.Load(); n != 2 {
				t.Errorf("%d connections, want 2", n)
			}
		})
	}
}

// TestHeads checks 1xx responses and invalid response headers.
func TestHeads(t *testing.T) {
	for name, test := range map[string]struct {
		response string
		fails    bool
		early    int
	}{
		"early hints":             {response: "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + fine, early: 103},
		"unexpected 100 Continue": {response: "HTTP/1.1 100 Continue\r\n\r\n" + fine},
		"switches protocols":      {response: "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", fails: true},
		"too long":                {response: "HTTP/1.1 200 OK\r\nLong: " + strings.Repeat("a", 5000) + "\r\n\r\n", fails: true},
		"early hints, long":       {response: strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 200), fails: true, early: 103},
		"not HTTP":                {response: "SSH-2.0-x\r\n", fails: true},
		"different lengths":       {response: "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nfine", fails: true},
		"truncated header":        {response: "HTTP/1.1 200 OK\r\nContent-Le", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			address := script(t, func(_ int, conn net.Conn, next func() (*http.Request, bool)) {
				next()
				write(conn, test.response)
				if name != "truncated header" {
					next()
				}
			})
			early := 0
			request := newRequest(t, http.MethodGet, "")
			inform := func(status int, _ http.Header) error {
				early = status
				return nil
			}
			_, text, _, err := send(t, backendAt(settings(), nil, address), request, &Policy{Informational: inform})
			if (err != nil) != test.fails || err == nil && text != "fine" || early != test.early {
				t.Errorf("response %q, early %d, %v", text, early, err)
			}
		})
	}
}

// TestRequestCancellation checks that cancellation and timeouts end a request in every phase.
func TestRequestCancellation(t *testing.T) {
	for name, begin := range map[string]string{
		"before the header": "", "in the header": "HTTP/1.1 200 OK\r\n", "in the body": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfine",
	} {
		t.Run(name, func(t *testing.T) {
			reached, ended := make(chan struct{}, 2), make(chan struct{}, 2)
			address := script(t, func(_ int, conn net.Conn, next func() (*http.Request, bool)) {
				next()
				write(conn, begin)
				reached <- struct{}{}
				next()
				ended <- struct{}{}
			})
			b := backendAt(settings(), nil, address)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-reached
				cancel()
			}()
			if _, _, _, err := send(t, b, newRequest(t, http.MethodGet, "").WithContext(ctx), &Policy{}); err == nil {
				t.Error("no error after the context was canceled")
			}
			<-ended
			_, _, _, err := send(t, b, newRequest(t, http.MethodGet, ""), &Policy{Timeout: 20 * time.Millisecond})
			if err == nil || name != "in the body" && !errors.Is(err, ErrTimeout) {
				t.Errorf("over the time limit: %v", err)
			}
			<-ended
			if active := b.Set.All()[0].Active(); active != 0 {
				t.Errorf("%d active requests; want 0", active)
			}
		})
	}
}

// TestForget checks that connections to a removed endpoint close, those in use after their request.
func TestForget(t *testing.T) {
	hold, held := make(chan struct{}), make(chan struct{})
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			close(held)
			<-hold
		}
	})
	b := backendAt(settings(), nil, s.address)
	must(t, b, http.MethodGet, "")
	endpoint := b.Set.All()[0]
	busy := make(chan error, 1)
	go func() {
		_, _, _, err := send(t, b, newRequest(t, http.MethodPost, ""), &Policy{})
		busy <- err
	}()
	<-held
	other := backendAt(settings(), nil, s.address)
	must(t, other, http.MethodGet, "")
	must(t, b, http.MethodGet, "")
	endpoint.Leave()
	b.transport.Forget(endpoint)
	await(t, "the idle connection closed", func() bool { return s.closed.Load() == 1 })
	close(hold)
	if err := <-busy; err != nil {
		t.Error(err)
	}
	await(t, "the connection in use closed", func() bool { return s.closed.Load() == 2 })
	must(t, other, http.MethodGet, "")
	if n := s.accepted.Load(); n != 3 {
		t.Errorf("%d connections: the connection of the other backend was closed", n)
	}
}
