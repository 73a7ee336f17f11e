// SPDX-License-Identifier: Apache-2.0

package fuzz

import (
	"bufio"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

var poisonings = flag.Int("poisonings", 300, "number of poisoned responses of TestPoisoning")

// segment delays writes until flush, so that several TLS records share a segment.
type segment struct {
	net.Conn
	held    []byte
	holding bool
}

func (s *segment) Write(b []byte) (int, error) {
	if !s.holding {
		return s.Conn.Write(b)
	}
	s.held = append(s.held, b...)
	return len(b), nil
}

func (s *segment) flush() error {
	_, err := s.Conn.Write(s.held)
	s.held, s.holding = nil, false
	return err
}

// poisoned are responses without a body, each followed by an unsolicited response.
var poisoned = []struct{ method, path, response string }{
	{http.MethodHead, "/head", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"},
	{http.MethodGet, "/204", "HTTP/1.1 204 No Content\r\n\r\n"},
	{http.MethodGet, "/304", "HTTP/1.1 304 Not Modified\r\n\r\n"},
}

func startPoisoning(t *testing.T, _ *world, _ string) (netip.AddrPort, *resource.Backend) {
	t.Helper()
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	config := &tls.Config{Certificates: web.TLS.Certificates}
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
			stop := context.AfterFunc(t.Context(), func() { _ = conn.Close() })
			go func() {
				defer stop()
				defer conn.Close()
				poison(&segment{Conn: conn}, config)
			}()
		}
	}()
	return netip.MustParseAddrPort(listener.Addr().String()), &resource.Backend{Tls: &resource.BackendTLS{Hostname: "example.com"}}
}

// poison serves a connection: a poisoned response for the paths of poisoned, "fine" for others.
func poison(below *segment, config *tls.Config) {
	conn := tls.Server(below, config)
	reader := bufio.NewReader(conn)
	for {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		response := "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
		for _, each := range poisoned {
			if request.URL.Path == each.path {
				response, below.holding = each.response, true
			}
		}
		_, err = io.WriteString(conn, response)
		if below.holding && err == nil {
			if _, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison"); err == nil {
				err = below.flush()
			}
		}
		if err != nil {
			return
		}
	}
}

// TestPoisoning checks that no client receives an unsolicited response that shares a segment with another
// response.
func TestPoisoning(t *testing.T) {
	w := newWorld(t, startPoisoning)
	var requests, got atomic.Int64
	var clients sync.WaitGroup
	const parallel = 4
	for client := range parallel {
		clients.Go(func() {
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			c := &http.Client{Transport: transport, Timeout: 20 * time.Second}
			send := func(method, path string) (text string, err error) {
				request, err := http.NewRequestWithContext(t.Context(), method, "http://"+w.plain+path, nil)
				if err != nil {
					return "", err
				}
				request.Host = public
				response, err := c.Do(request)
				if err != nil {
					return "", err
				}
				defer response.Body.Close()
				body, err := io.ReadAll(response.Body)
				return fmt.Sprint(response.StatusCode, " ", string(body)), err
			}
			for i := client; i < *poisonings && !t.Failed(); i += parallel {
				each := poisoned[i%len(poisoned)]
				if _, err := send(each.method, each.path); err != nil {
					t.Errorf("%s %s: %v", each.method, each.path, err)
				}
				requests.Add(1)
				if text, err := send(http.MethodGet, "/"); err != nil || text != "200 fine" {
					t.Errorf("after %s %s: %s, %v; want 200 fine", each.method, each.path, text, err)
					got.Add(1)
				}
			}
		})
	}
	clients.Wait()
	t.Logf("%d of %d responses were poisoned", got.Load(), requests.Load())
}
