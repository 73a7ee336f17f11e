// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func hostname(name string) *resource.Hostname {
	if suffix, ok := strings.CutPrefix(name, "*."); ok {
		return &resource.Hostname{Name: suffix, Wildcard: resource.Hostname_LABELS}
	}
	return &resource.Hostname{Name: name}
}

func TestCertificatesByServerName(t *testing.T) {
	port, authority := freePort(t), newCA(t)
	start(t, nil, all(
		one(
			authority.resource("c/a", "a.example.com"), authority.resource("c/wild", "*.example.com"),
			authority.resource("c/b", "b.example.com"), authority.resource("c/net", "example.net", "*.example.net"),
			tlsListener("la", port, hostname("a.example.com"), "c/a"),
			tlsListener("lw", port, hostname("*.example.com"), "c/wild", "c/b"),
			tlsListener("net", port, hostname("example.net"), "c/net"),
			routes("ra", "la", nil, toward("/", "a")), routes("rw", "lw", nil, toward("/", "wild")),
			routes("rn", "net", nil, toward("/", "a")),
		),
		backend("a", serve(t, echo("a"))), backend("wild", serve(t, echo("wild"))),
	)...)
	for _, tc := range []struct {
		host, certificate, backend string
		protocol                   func(*http.Protocols, bool)
	}{
		{"a.example.com", "a.example.com", "a", (*http.Protocols).SetHTTP1},
		{"A.EXAMPLE.COM", "a.example.com", "a", (*http.Protocols).SetHTTP2},
		{"b.example.com", "b.example.com", "wild", (*http.Protocols).SetHTTP2},
		{"c.example.com", "*.example.com", "wild", (*http.Protocols).SetHTTP1},
		{"example.net", "example.net", "a", (*http.Protocols).SetHTTP2},
	} {
		got := get(t, client(t, port, &tls.Config{RootCAs: authority.pool()}, tc.protocol), "https://"+tc.host+"/")
		if name := got.TLS.PeerCertificates[0].DNSNames[0]; name != tc.certificate {
			t.Errorf("%s: certificate for %s; want %s", tc.host, name, tc.certificate)
		}
		if got.StatusCode != 200 || got.Header.Get("X-Backend") != tc.backend {
			t.Errorf("%s: %d from %q; want 200 from %q", tc.host, got.StatusCode, got.Header.Get("X-Backend"), tc.backend)
		}
		if want := map[bool]int{true: 1, false: 2}[got.TLS.NegotiatedProtocol != "h2"]; got.ProtoMajor != want {
			t.Errorf("%s: HTTP/%d with %q", tc.host, got.ProtoMajor, got.TLS.NegotiatedProtocol)
		}
		if !strings.Contains(got.body, "X-Forwarded-Proto: https\r\n") {
			t.Errorf("%s: the backend received\n%s\nwant X-Forwarded-Proto: https", tc.host, got.body)
		}
	}
	for _, name := range []string{"other.example.org", "sub.example.net", ""} {
		_, err := tls.Dial("tcp", client127(port), &tls.Config{ServerName: name, InsecureSkipVerify: true})
		if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("server name %q: error %v; want the alert unrecognized_name", name, err)
		}
	}
	if _, err := tls.Dial("tcp", client127(port), &tls.Config{
		ServerName: "a.example.com", RootCAs: authority.pool(), MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10,
	}); err == nil {
		t.Error("TLS 1.1 was accepted")
	}
}

func TestMisdirected(t *testing.T) {
	port, authority := freePort(t), newCA(t)
	start(t, nil, all(
		one(
			authority.resource("c", "a.example.com", "b.example.com", "c.example.com"),
			tlsListener("la", port, hostname("a.example.com"), "c"), tlsListener("lb", port, hostname("*.example.com"), "c"),
			routes("ra", "la", nil, toward("/", "a")), routes("rb", "lb", nil, toward("/", "a")),
		),
		backend("a", serve(t, echo("a"))),
	)...)
	for _, protocol := range []func(*http.Protocols, bool){(*http.Protocols).SetHTTP1, (*http.Protocols).SetHTTP2} {
		for host, want := range map[string]int{
			"a.example.com": 200, "A.Example.Com.:443": 200, "b.example.com": 421, "other.example.org": 404,
		} {
			c := client(t, port, &tls.Config{RootCAs: authority.pool(), ServerName: "a.example.com"}, protocol)
			if got := get(t, c, "https://a.example.com/", "Host: "+host); got.StatusCode != want {
				t.Errorf("host %s on a connection for a.example.com: %d; want %d", host, got.StatusCode, want)
			}
		}
	}
}

// TestAnyServerName checks that an Ingress is routed by Host, independent of the server name (IngressTLS).
func TestAnyServerName(t *testing.T) {
	port, authority := freePort(t), newCA(t)
	la, lb := tlsListener("la", port, hostname("a.example.com"), "c"), tlsListener("lb", port, hostname("b.example.com"), "c")
	la.GetListener().AnyServerName, lb.GetListener().AnyServerName = true, true
	start(t, nil, all(
		one(authority.resource("c", "a.example.com", "b.example.com"), la, lb,
			routes("ra", "la", nil, toward("/", "a")), routes("rb", "lb", nil, toward("/", "b"))),
		backend("a", serve(t, echo("a"))), backend("b", serve(t, echo("b"))),
	)...)
	for _, protocol := range []func(*http.Protocols, bool){(*http.Protocols).SetHTTP1, (*http.Protocols).SetHTTP2} {
		c := client(t, port, &tls.Config{RootCAs: authority.pool(), ServerName: "a.example.com"}, protocol)
		for host, want := range map[string]string{"a.example.com": "200 a", "b.example.com": "200 b", "c.example.com": "404 "} {
			got := get(t, c, "https://a.example.com/", "Host: "+host)
			if have := fmt.Sprintf("%d %s", got.StatusCode, got.Header.Get("X-Backend")); have != want {
				t.Errorf("host %s on a connection for a.example.com: %s; want %s", host, have, want)
			}
		}
	}
}

func TestClientValidation(t *testing.T) {
	port, authority, clients, others := freePort(t), newCA(t), newCA(t), newCA(t)
	strict := tlsListener("strict", port, hostname("strict.example.com"), "c")
	strict.GetListener().ClientValidation = &resource.ClientValidation{CertificateAuthorities: []string{"clients"}}
	lenient := tlsListener("lenient", port, hostname("lenient.example.com"), "c")
	lenient.GetListener().ClientValidation = &resource.ClientValidation{
		CertificateAuthorities: []string{"clients"}, AllowInsecureFallback: true,
	}
	open := tlsListener("open", port, hostname("open.example.com"), "c")
	resources := all(
		one(
			authority.resource("c", "*.example.com"), clients.authority("clients"), strict, lenient, open,
			routes("rs", "strict", nil, toward("/", "a")), routes("rl", "lenient", nil, toward("/", "a")),
			routes("ro", "open", nil, toward("/", "a")),
		),
		backend("a", serve(t, echo("a"))),
	)
	f := start(t, nil, resources...)
	good, bad := clients.pair("someone"), others.pair("someone")
	for _, tc := range []struct {
		host        string
		certificate *tls.Certificate
		ok          bool
	}{
		{"strict.example.com", &good, true},
		{"strict.example.com", &bad, false},
		{"strict.example.com", nil, false},
		{"lenient.example.com", &bad, true},
		{"lenient.example.com", nil, true},
		{"open.example.com", nil, true},
	} {
		config := &tls.Config{RootCAs: authority.pool()}
		if tc.certificate != nil {
			config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return tc.certificate, nil }
		}
		response, err := client(t, port, config).Get("https://" + tc.host + "/")
		if err == nil {
			_ = response.Body.Close()
		}
		if (err == nil) != tc.ok {
			t.Errorf("%s: error %v; want served: %v", tc.host, err, tc.ok)
		}
	}

	// A ticket of a listener without client validation, or with another authority, must not be accepted.
	cache := tls.NewLRUClientSessionCache(8)
	config := &tls.Config{RootCAs: authority.pool(), ClientSessionCache: sharedCache{cache}}
	get(t, client(t, port, config), "https://open.example.com/")
	if got := get(t, client(t, port, config), "https://open.example.com/"); !got.TLS.DidResume {
		t.Error("the session was not resumed at its own listener")
	}
	if response, err := client(t, port, config).Get("https://strict.example.com/"); err == nil {
		_ = response.Body.Close()
		t.Error("a session ticket of another listener was accepted instead of a client certificate")
	}
	with := &tls.Config{RootCAs: authority.pool(), ClientSessionCache: tls.NewLRUClientSessionCache(8), Certificates: []tls.Certificate{good}}
	get(t, client(t, port, with), "https://strict.example.com/")
	if got := get(t, client(t, port, with), "https://strict.example.com/"); !got.TLS.DidResume {
		t.Error("the session was not resumed")
	}
	f.change(others.authority("clients"))
	if response, err := client(t, port, with).Get("https://strict.example.com/"); err == nil {
		_ = response.Body.Close()
		t.Error("a session ticket was accepted after its CA was removed")
	}
}

type sharedCache struct{ tls.ClientSessionCache }

func (c sharedCache) Get(string) (*tls.ClientSessionState, bool) { return c.ClientSessionCache.Get("") }
func (c sharedCache) Put(_ string, s *tls.ClientSessionState)    { c.ClientSessionCache.Put("", s) }

// TestRotation changes certificates continuously while requests on old and new connections succeed.
func TestRotation(t *testing.T) {
	port, authority := freePort(t), newCA(t)
	secret := &resource.Resource{Name: "s", Kind: &resource.Resource_SharedSecret{
		SharedSecret: &resource.SharedSecret{Values: [][]byte{[]byte(strings.Repeat("s", 32))}},
	}}
	resources := all(
		one(secret, authority.resource("c", "a.example.com"), tlsListener("la", port, hostname("a.example.com"), "c"),
			routes("ra", "la", nil, toward("/", "a"))),
		backend("a", serve(t, echo("a"))),
	)
	f := start(t, nil, resources...)
	cache := tls.NewLRUClientSessionCache(8)
	kept := client(t, port, &tls.Config{RootCAs: authority.pool()})
	h2 := client(t, port, &tls.Config{RootCAs: authority.pool()}, (*http.Protocols).SetHTTP2)
	first := get(t, kept, "https://a.example.com/").TLS.PeerCertificates[0].SerialNumber
	var wait sync.WaitGroup
	for range 20 {
		f.change(authority.resource("c", "a.example.com"))
		for _, c := range []*http.Client{kept, h2, client(t, port, &tls.Config{RootCAs: authority.pool(), ClientSessionCache: cache})} {
			wait.Go(func() {
				response, err := c.Get("https://a.example.com/")
				if err != nil {
					t.Error(err)
					return
				}
				_ = response.Body.Close()
			})
		}
		wait.Wait()
	}
	fresh := get(t, client(t, port, &tls.Config{RootCAs: authority.pool()}), "https://a.example.com/").TLS.PeerCertificates[0]
	if fresh.SerialNumber.Cmp(first) == 0 {
		t.Error("a new connection uses the old certificate")
	}
	if got := get(t, client(t, port, &tls.Config{RootCAs: authority.pool(), ClientSessionCache: cache}), "https://a.example.com/"); !got.TLS.DidResume {
		t.Error("the session was not resumed after the certificate renewal")
	}

	other := freePort(t)
	moved := tlsListener("la", other, hostname("a.example.com"), "c")
	resources[2] = moved
	start(t, nil, resources...)
	if got := get(t, client(t, other, &tls.Config{RootCAs: authority.pool(), ClientSessionCache: cache}), "https://a.example.com/"); !got.TLS.DidResume {
		t.Error("the session was not resumed at another proxy")
	}
}

// TestHandshakesTakeTurns checks that aborted handshakes release their turn.
func TestHandshakesTakeTurns(t *testing.T) {
	port, plain, authority := freePort(t), freePort(t), newCA(t)
	f := start(t, nil, all(one(
		authority.resource("c", "a.example.com"), tlsListener("l", port, nil, "c"), httpListener("p", plain, nil),
		routes("r", "l", nil, toward("/", "a")), routes("rp", "p", nil, toward("/", "a")),
	), backend("a", serve(t, echo("a"))))...)
	config := &tls.Config{RootCAs: authority.pool()}
	kept := client(t, port, config)
	get(t, kept, "https://a.example.com/")
	others := netip.MustParseAddr("198.51.100.1")
	for range maxHandshakes() {
		f.queue.Acquire(others)
	}
	left, err := net.Dial("tcp", client127(port))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = left.Write([]byte("no ClientHello"))
	_ = left.Close()
	answered := make(chan int, 1)
	fresh := client(t, port, config)
	go func() {
		code := 0
		if response, err := fresh.Get("https://a.example.com/"); err == nil {
			_ = response.Body.Close()
			code = response.StatusCode
		}
		answered <- code
	}()
	for _, reply := range []reply{get(t, kept, "https://a.example.com/"), get(t, client(t, plain, nil), "http://a/")} {
		if reply.StatusCode != 200 {
			t.Errorf("with pending handshakes: %d; want 200", reply.StatusCode)
		}
	}
	select {
	case <-answered:
		t.Fatal("a handshake continued without a slot")
	case <-time.After(50 * time.Millisecond):
	}
	for range maxHandshakes() {
		f.queue.Release()
	}
	if code := <-answered; code != 200 {
		t.Errorf("with a slot: %d; want 200", code)
	}
	for range maxHandshakes() {
		f.queue.Acquire(others)
	}
}
