// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"crypto/x509"
	"errors"
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

// closedAddress returns an address without a listener.
func closedAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// TestConnectToOtherEndpoint checks that any request is retried on another endpoint if connecting fails.
func TestConnectToOtherEndpoint(t *testing.T) {
	for _, body := range []string{"", "body"} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			_, _ = w.Write(text)
		})
		b := backendAt(settings(), nil, closedAddress(t), closedAddress(t), s.address)
		for range 20 {
			if text := must(t, b, http.MethodPost, body); text != body {
				t.Errorf("the endpoint received %q", text)
			}
		}
		only := backendAt(settings(), nil, closedAddress(t))
		_, _, exchange, err := send(t, only, newRequest(t, http.MethodGet, ""), &Policy{})
		if err == nil || exchange.Attempts != 1 {
			t.Errorf("without endpoints: %d attempts, %v", exchange.Attempts, err)
		}
	}
}

// TestRetryOfProcessedRequest checks that a possibly processed request is retried only if policy, method
// and body permit it.
func TestRetryOfProcessedRequest(t *testing.T) {
	const breaks, refuses = "breaks", "refuses"
	for name, test := range map[string]struct {
		does, method, body string
		policy             Policy
		want               int32
	}{
		"connection reset, no policy":      {breaks, http.MethodGet, "", Policy{}, 1},
		"breaks":                           {breaks, http.MethodGet, "", Policy{Attempts: 2}, 3},
		"connection reset, not idempotent": {breaks, http.MethodPost, "", Policy{Attempts: 2}, 1},
		"connection reset, with a body":    {breaks, http.MethodPut, "body", Policy{Attempts: 2}, 1},
		"503, no policy":                   {refuses, http.MethodGet, "", Policy{}, 1},
		"refuses":                          {refuses, http.MethodGet, "", Policy{Attempts: 2, Statuses: []uint32{503}}, 3},
		"503, other status in the policy":  {refuses, http.MethodGet, "", Policy{Attempts: 2, Statuses: []uint32{500}}, 1},
		"503, with a body":                 {refuses, http.MethodPut, "body", Policy{Attempts: 2, Statuses: []uint32{503}}, 1},
		"503, with a back-off":             {refuses, http.MethodGet, "", Policy{Attempts: 1, Statuses: []uint32{503}, Backoff: time.Millisecond}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var seen, tried atomic.Int32
			address := script(t, func(_ int, conn net.Conn, next func() (*http.Request, bool)) {
				request, ok := next()
				if !ok {
					return
				}
				_, _ = io.Copy(io.Discard, request.Body)
				seen.Add(1)
				if test.does == refuses {
					write(conn, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				}
			})
			test.policy.OnAttempt = func(int, error) { tried.Add(1) }
			b := backendAt(settings(), nil, address)
			status, _, exchange, err := send(t, b, newRequest(t, test.method, test.body), &test.policy)
			if (err == nil) != (test.does == refuses) || err == nil && status != http.StatusServiceUnavailable {
				t.Errorf("status %d, %v", status, err)
			}
			if seen.Load() != test.want || tried.Load() != test.want || int32(exchange.Attempts) != test.want {
				t.Errorf("sent %d times, reported %d, counted %d, want %d", seen.Load(), tried.Load(), exchange.Attempts, test.want)
			}
			if active := b.Set.All()[0].Active(); active != 0 {
				t.Errorf("%d active requests; want 0", active)
			}
		})
	}
}

// TestEndpointLimit checks that requests count until the end of the response body.
func TestEndpointLimit(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("a", 1<<20)) })
	limits := settings()
	limits.Balance.MaxRequests = 1
	b := backendAt(limits, nil, s.address)
	response, _, err := b.RoundTrip(newRequest(t, http.MethodGet, ""), &Policy{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := send(t, b, newRequest(t, http.MethodGet, ""), &Policy{}); !errors.Is(err, balance.ErrBusy) {
		t.Errorf("above the limit: %v", err)
	}
	_ = response.Body.Close()
	must(t, b, http.MethodGet, "")
}

// TestRefused checks that a backend with invalid configuration receives no request.
func TestRefused(t *testing.T) {
	b := New("backend", &resource.Backend{Refuse: true}, settings(), Connection{Current: Transports{}})
	if _, _, _, err := send(t, b, newRequest(t, http.MethodGet, ""), &Policy{}); !errors.Is(err, ErrRefused) {
		t.Errorf("request: %v", err)
	}
	if _, err := b.Dial(t.Context(), DownstreamClient{}, func([]byte) {}); !errors.Is(err, ErrRefused) {
		t.Errorf("tunnel: %v", err)
	}
}

// TestResumedIsVerified checks verification of a resumed session, which has no Certificate message.
func TestResumedIsVerified(t *testing.T) {
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		if r.TLS.DidResume {
			w.Header().Set("Resumed", "yes")
		}
	}))
	web.StartTLS()
	defer web.Close()
	authority := &Authority{Certificates: []*x509.Certificate{web.Certificate()}}
	with := &TLS{Resource: &resource.BackendTLS{Hostname: "example.com"}, Authorities: []*Authority{authority}}
	b := backendAt(settings(), with, web.Listener.Addr().String())
	for i, want := range []string{"", "yes"} {
		response, _, err := b.RoundTrip(newRequest(t, http.MethodGet, ""), &Policy{})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if got := response.Header.Get("Resumed"); got != want {
			t.Fatalf("connection %d: resumed %q, want %q", i, got, want)
		}
	}
	// The same session, but the new configuration requires another name.
	with.Resource = &resource.BackendTLS{Hostname: "example.com", SubjectAltNames: []*resource.SubjectAltName{
		{Kind: &resource.SubjectAltName_Hostname{Hostname: "other.example.org"}},
	}}
	if _, _, _, err := send(t, b, newRequest(t, http.MethodGet, ""), &Policy{}); err == nil {
		t.Error("a resumed session with the wrong server name was accepted")
	}
}

// TestIdentity checks that backends share connections only with equal verification.
func TestIdentity(t *testing.T) {
	s, settings := closedAddress(t), settings()
	transports := Transports{}
	set := balance.NewSet(&settings.Balance, []balance.Address{{AddrPort: netip.MustParseAddrPort(s)}}, nil, time.Now())
	of := func(protocol resource.Backend_Protocol, with *TLS) *Transport {
		return New("b", &resource.Backend{Protocol: protocol}, settings, Connection{Set: set, TLS: with, Current: transports}).transport
	}
	named := func(name string) *TLS { return &TLS{Resource: &resource.BackendTLS{Hostname: name}} }
	plain := of(resource.Backend_HTTP1, nil)
	if of(resource.Backend_HTTP1, nil) != plain {
		t.Error("two plaintext backends do not share connections")
	}
	first, second := of(resource.Backend_HTTP1, named("a.example.com")), of(resource.Backend_HTTP1, named("a.example.com"))
	if first != second {
		t.Error("two backends with the same identity do not share connections")
	}
	seen := map[*Transport]string{plain: "plain"}
	for name, other := range map[string]*Transport{
		"h2c": of(resource.Backend_H2C, nil), "a": of(resource.Backend_HTTP1, named("a.example.com")),
		"b": of(resource.Backend_HTTP1, named("b.example.com")), "a, h2": of(resource.Backend_H2C, named("a.example.com")),
	} {
		if seen[other] != "" {
			t.Errorf("%s shares connections with %s", name, seen[other])
		}
		seen[other] = name
	}
}
