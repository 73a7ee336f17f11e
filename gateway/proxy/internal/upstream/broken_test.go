// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// TestLengths checks that wrong framing prevents reuse of the connection and truncation is an error.
func TestLengths(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, test := range map[string]struct {
		response string
		want     string
		// fails: the response is incomplete. closes: the connection is not reused.
		fails, closes bool
	}{
		"duplicate length":                        {response: ok + "Content-Length: 4\r\nContent-Length: 4\r\n\r\nfine", want: "fine"},
		"list of equal lengths":                   {response: ok + "Content-Length: 4, 4\r\n\r\nfine", fails: true},
		"different lengths":                       {response: ok + "Content-Length: 4\r\nContent-Length: 5\r\n\r\nfine", fails: true},
		"length with a sign":                      {response: ok + "Content-Length: +4\r\n\r\nfine", fails: true},
		"negative length":                         {response: ok + "Content-Length: -4\r\n\r\nfine", fails: true},
		"length too short":                        {response: ok + "Content-Length: 2\r\n\r\nfine", want: "fi", closes: true},
		"length too long":                         {response: ok + "Content-Length: 9\r\nConnection: close\r\n\r\nfine", fails: true},
		"chunked with a length":                   {response: ok + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n", want: "fine", closes: true},
		"chunked with a length, body not chunked": {response: ok + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nfine", fails: true},
		"chunked twice":                           {response: ok + "Transfer-Encoding: chunked, chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n", fails: true},
		"unknown encoding":                        {response: ok + "Transfer-Encoding: xchunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n", fails: true},
		"truncated chunk":                         {response: ok + "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n4\r\nfi", fails: true},
		"no last chunk":                           {response: ok + "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n4\r\nfine\r\n", fails: true},
		"chunk of negative length":                {response: ok + "Transfer-Encoding: chunked\r\n\r\n-4\r\nfine\r\n0\r\n\r\n", fails: true},
		"204 with a body":                         {response: "HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\nfine", closes: true},
		"304 with a body":                         {response: "HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\nfine", closes: true},
		"space before the colon":                  {response: ok + "Content-Length : 2\r\n\r\nfine", want: "fi", closes: true},
	} {
		t.Run(name, func(t *testing.T) {
			var connections atomic.Int32
			address := script(t, func(number int, conn net.Conn, next func() (*http.Request, bool)) {
				connections.Add(1)
				for more := true; more; {
					if _, more = next(); !more {
						return
					}
					if number == 1 {
						write(conn, test.response)
						if strings.Contains(test.response, "close") {
							return
						}
						number++
						continue
					}
					write(conn, fine)
				}
			})
			b := backendAt(settings(), nil, address)
			_, text, _, err := send(t, b, newRequest(t, http.MethodGet, ""), &Policy{})
			if (err != nil) != test.fails || err == nil && text != test.want {
				t.Errorf("%q, %v; want %q, error: %v", text, err, test.want, test.fails)
			}
			for range 3 {
				if text := must(t, b, http.MethodGet, ""); text != "fine" {
					t.Errorf("next request: response %q", text)
				}
			}
			want := int32(1)
			if test.fails || test.closes {
				want = 2
			}
			if n := connections.Load(); n != want {
				t.Errorf("%d connections; want %d", n, want)
			}
		})
	}
}

// TestNothingIsDecompressed checks that compressed bodies are passed through unchanged.
func TestNothingIsDecompressed(t *testing.T) {
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	_, _ = writer.Write(make([]byte, 10<<20))
	_ = writer.Close()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if accepted := r.Header.Get("Accept-Encoding"); accepted != "" {
			t.Errorf("the backend received Accept-Encoding %q, which the client did not send", accepted)
		}
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(packed.Bytes())
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	address := server.Listener.Addr().String()
	for name, b := range map[string]*Backend{
		"HTTP/1.1": backendAt(settings(), nil, address), "HTTP/2": over(settings(), &frames{address: address}),
	} {
		if _, text, _, err := send(t, b, newRequest(t, http.MethodGet, ""), &Policy{}); err != nil || text != packed.String() {
			t.Errorf("%s: %d bytes, %v; want %d", name, len(text), err, packed.Len())
		}
	}
}

// TestMultiplexedTLS checks that requests over TLS share a connection after its stream limit is known.
func TestMultiplexedTLS(t *testing.T) {
	for _, streams := range []int{10, unknownStreams} {
		t.Run(fmt.Sprint(streams), func(t *testing.T) {
			var connections, came atomic.Int32
			hold := make(chan struct{})
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.ProtoMajor != 2 {
					t.Errorf("the request was sent over %s", r.Proto)
				}
				if came.Add(1); r.Method == http.MethodPut {
					<-hold
				}
			}))
			server.EnableHTTP2 = true
			server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: streams}
			server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				if state == http.StateNew {
					connections.Add(1)
				}
			}
			server.TLS = &tls.Config{NextProtos: []string{"h2"}}
			server.StartTLS()
			defer server.Close()
			set := balance.NewSet(&balance.Settings{}, []balance.Address{{AddrPort: netip.MustParseAddrPort(server.Listener.Addr().String())}}, nil, time.Now())
			b := New("backend", &resource.Backend{Protocol: resource.Backend_H2C}, settings(), Connection{Set: set, Current: Transports{}, TLS: &TLS{
				Resource:    &resource.BackendTLS{Hostname: "example.com"},
				Authorities: []*Authority{{Certificates: []*x509.Certificate{server.Certificate()}}},
			}})
			failures := make(chan error, 30)
			for range cap(failures) {
				go func() {
					_, _, _, err := send(t, b, newRequest(t, http.MethodPut, "body"), &Policy{})
					failures <- err
				}()
			}
			await(t, "all requests received or failed", func() bool { return int(came.Load())+len(failures) >= cap(failures) })
			close(hold)
			for range cap(failures) {
				if err := <-failures; err != nil {
					t.Error(err)
				}
			}
			if n, want := int(connections.Load()), (cap(failures)+streams-1)/streams; n != want {
				t.Errorf("%d connections; want %d", n, want)
			}
		})
	}
}

// TestBodyErrorIsReported checks that a read error of the request body is returned.
func TestBodyErrorIsReported(t *testing.T) {
	at := serve(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	b := backendAt(settings(), nil, at.address)
	broken := errors.New("the client's body is broken")
	for range 5000 {
		request := newRequest(t, http.MethodPost, "")
		request.Body, request.ContentLength = io.NopCloser(iotest.ErrReader(broken)), -1
		if _, _, _, err := send(t, b, request, &Policy{}); !errors.Is(err, broken) {
			t.Fatalf("the error is %v", err)
		}
	}
}
