// SPDX-License-Identifier: Apache-2.0

package fuzz

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy"
	"github.com/millrace-lb/millrace/gateway/resource"
)

const (
	public   = "public.example.com"
	internal = "internal.example.com"
)

type world struct {
	plain, secure string
	mutex         sync.Mutex
	// parsed are the requests that backends have parsed since the last call of taken.
	parsed []parsed
}

type parsed struct {
	backend, method, target, host string
	header                        http.Header
	body                          string
}

func (p parsed) String() string {
	return strings.Join([]string{p.backend, p.method, p.target, p.host}, " ")
}

// newWorld starts a proxy with backends of a kind.
func newWorld(t *testing.T, kind kind) *world {
	t.Helper()
	w := &world{}
	plain, secure := freePort(t), freePort(t)
	w.plain, w.secure = fmt.Sprintf("127.0.0.1:%d", plain), fmt.Sprintf("127.0.0.1:%d", secure)
	resources := []*resource.Resource{
		certificate(t),
		{Name: "plain", Kind: &resource.Resource_Listener{Listener: &resource.Listener{
			Port: 80, TargetPort: plain, Protocol: resource.Listener_HTTP}}},
		{Name: "secure", Kind: &resource.Resource_Listener{Listener: &resource.Listener{
			Port: 443, TargetPort: secure, Protocol: resource.Listener_HTTPS, Certificates: []string{"certificate"}}}},
		routes(public, rule("/admin", "admin"), guarded(), authorizedRule(), rewritten(), rule("/", "public")),
		routes(internal, rule("/", "internal")),
	}
	resources = append(resources, denying(t)...)
	for _, name := range []string{"public", "admin", "internal"} {
		address, backend := kind(t, w, name)
		backend.Endpoints = name + "/endpoints"
		if backend.GetTls() != nil {
			authority := &resource.CertificateAuthority{Certificates: testServerCertificate(t)}
			resources = append(resources, &resource.Resource{
				Name: name + "/authority", Kind: &resource.Resource_CertificateAuthority{CertificateAuthority: authority}})
			backend.Tls.CertificateAuthorities = []string{name + "/authority"}
		}
		resources = append(resources,
			&resource.Resource{Name: name, Kind: &resource.Resource_Backend{Backend: backend}},
			&resource.Resource{Name: name + "/endpoints", Kind: &resource.Resource_Endpoints{Endpoints: &resource.Endpoints{
				Endpoints: []*resource.Endpoint{{Address: address.Addr().String(), Port: uint32(address.Port())}}}}})
	}
	settings := proxy.Defaults()
	settings.Address, settings.DrainWait, settings.DrainGrace = "127.0.0.1", 0, 10*time.Millisecond
	served := proxy.New(settings)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = served.Shutdown(ctx)
	})
	if served.Apply(proxy.Update{Version: "1", Whole: true, Resources: resources}); len(served.Refused()) > 0 {
		t.Fatal(served.Refused())
	}
	return w
}

func (w *world) record(out http.ResponseWriter, r *http.Request, p parsed) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	p.body, p.header = string(body), r.Header.Clone()
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.parsed = append(w.parsed, p)
}

func (w *world) taken() []parsed {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	taken := w.parsed
	w.parsed = nil
	return taken
}

// belongs returns the backend for a request, by the host and path that the backend has parsed.
func belongs(p parsed) string {
	path := p.target
	if read, err := url.ParseRequestURI(p.target); err == nil {
		path = read.Path
	}
	switch {
	case p.host == internal:
		return "internal"
	case path == "/admin" || strings.HasPrefix(path, "/admin/"):
		return "admin"
	}
	return "public"
}

func rule(prefix, backend string) *resource.Rule {
	return &resource.Rule{
		Route: "httproute/default/" + backend + "/0", Match: &resource.Match{Path: &resource.PathMatch{Value: prefix}},
		Backends: []*resource.WeightedBackend{{Backend: backend, Weight: 1}},
	}
}

func guarded() *resource.Rule {
	guarded := rule("/guarded", "internal")
	guarded.Filters = []*resource.Filter{{Kind: &resource.Filter_ClientAddresses{
		ClientAddresses: &resource.ClientAddresses{Allow: []string{"198.51.100.0/24"}}}}}
	return guarded
}

func authorizedRule() *resource.Rule {
	authorized := rule("/asked", "internal")
	authorized.Filters = []*resource.Filter{{Kind: &resource.Filter_ExternalAuthorization{ExternalAuthorization: &resource.ExternalAuthorization{
		Backend: "denying", Path: "/", RequestHeaders: []string{"*"}, ResponseHeaders: []string{"x-user"}}}}}
	return authorized
}

// denying rejects all requests, and fails the test if it receives a body.
func denying(t *testing.T) []*resource.Resource {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err != nil || len(body) > 0 || r.Method != http.MethodGet || r.RequestURI != "/" {
			t.Errorf("received %s %s with body %q, %v", r.Method, r.RequestURI, body, err)
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(server.Close)
	address := netip.MustParseAddrPort(server.Listener.Addr().String())
	return []*resource.Resource{
		{Name: "denying", Kind: &resource.Resource_Backend{Backend: &resource.Backend{Endpoints: "denying/endpoints"}}},
		{Name: "denying/endpoints", Kind: &resource.Resource_Endpoints{Endpoints: &resource.Endpoints{
			Endpoints: []*resource.Endpoint{{Address: address.Addr().String(), Port: uint32(address.Port())}}}}},
	}
}

func rewritten() *resource.Rule {
	change := &resource.ExpressionChange{Pattern: "^/rewritten(/?)(.*)", Substitution: "/public/$2"}
	rewritten := rule("/rewritten", "public")
	rewritten.Filters = []*resource.Filter{{Kind: &resource.Filter_Rewrite{Rewrite: &resource.Rewrite{
		Path: &resource.PathChange{Kind: &resource.PathChange_Expression{Expression: change}}}}}}
	return rewritten
}

func routes(host string, rules ...*resource.Rule) *resource.Resource {
	return &resource.Resource{Name: "routes/" + host, Kind: &resource.Resource_RouteGroup{RouteGroup: &resource.RouteGroup{
		Listeners: []string{"plain", "secure"}, Hostname: &resource.Hostname{Name: host}, Rules: rules,
	}}}
}

func certificate(t *testing.T) *resource.Resource {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return &resource.Resource{Name: "certificate", Kind: &resource.Resource_Certificate{Certificate: &resource.Certificate{
		Chain: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}),
		Key:   pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	}}}
}

func freePort(t *testing.T) uint32 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return uint32(listener.Addr().(*net.TCPAddr).Port)
}

func dialTLS(t *testing.T, address, protocol string) net.Conn {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, ServerName: public, NextProtos: []string{protocol}})
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
