// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

type fixture struct {
	*Proxy
	t        testing.TB
	versions int
}

func start(t testing.TB, change func(*Settings), resources ...*resource.Resource) *fixture {
	t.Helper()
	settings := Defaults()
	settings.Address = "127.0.0.1"
	settings.DrainWait, settings.DrainGrace = 10*time.Millisecond, time.Second
	if change != nil {
		change(&settings)
	}
	f := &fixture{Proxy: New(settings), t: t}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = f.Shutdown(ctx)
	})
	f.apply(resources...)
	return f
}

func (f *fixture) apply(resources ...*resource.Resource) {
	f.t.Helper()
	f.versions++
	f.Apply(Update{Version: fmt.Sprint(f.versions), Whole: true, Resources: resources})
}

func (f *fixture) change(resources ...*resource.Resource) {
	f.t.Helper()
	f.versions++
	f.Apply(Update{Version: fmt.Sprint(f.versions), Resources: resources})
}

func freePort(t testing.TB) uint32 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return uint32(listener.Addr().(*net.TCPAddr).Port)
}

func httpListener(name string, port uint32, hostname *resource.Hostname) *resource.Resource {
	return &resource.Resource{Name: name, Kind: &resource.Resource_Listener{Listener: &resource.Listener{
		Port: 80, TargetPort: port, Protocol: resource.Listener_HTTP, Hostname: hostname,
	}}}
}

func tlsListener(name string, port uint32, hostname *resource.Hostname, certificates ...string) *resource.Resource {
	return &resource.Resource{Name: name, Kind: &resource.Resource_Listener{Listener: &resource.Listener{
		Port: 443, TargetPort: port, Protocol: resource.Listener_HTTPS, Hostname: hostname, Certificates: certificates,
	}}}
}

func routes(name, listener string, hostname *resource.Hostname, rules ...*resource.Rule) *resource.Resource {
	return &resource.Resource{Name: name, Kind: &resource.Resource_RouteGroup{RouteGroup: &resource.RouteGroup{
		Listeners: []string{listener}, Hostname: hostname, Rules: rules,
	}}}
}

func toward(prefix, backend string, filters ...*resource.Filter) *resource.Rule {
	return &resource.Rule{
		Route:    "httproute/default/" + backend + "/0",
		Match:    &resource.Match{Path: &resource.PathMatch{Value: prefix}},
		Filters:  filters,
		Backends: []*resource.WeightedBackend{{Backend: backend, Weight: 1}},
	}
}

func backend(name string, addresses ...string) []*resource.Resource {
	return []*resource.Resource{
		{Name: name, Kind: &resource.Resource_Backend{Backend: &resource.Backend{Endpoints: name + "/endpoints"}}},
		endpoints(name+"/endpoints", addresses...),
	}
}

func endpoints(name string, addresses ...string) *resource.Resource {
	list := &resource.Endpoints{}
	for _, address := range addresses {
		parsed := netip.MustParseAddrPort(address)
		list.Endpoints = append(list.Endpoints, &resource.Endpoint{
			Address: parsed.Addr().String(), Port: uint32(parsed.Port()),
		})
	}
	return &resource.Resource{Name: name, Kind: &resource.Resource_Endpoints{Endpoints: list}}
}

func all(lists ...[]*resource.Resource) []*resource.Resource {
	var joined []*resource.Resource
	for _, list := range lists {
		joined = append(joined, list...)
	}
	return joined
}

func one(r ...*resource.Resource) []*resource.Resource { return r }

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func echo(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Backend", name)
		fmt.Fprintf(w, "%s %s %s\n", r.Method, r.RequestURI, r.Host)
		_ = r.Header.Write(w)
		fmt.Fprintf(w, "\n%s", body)
	}
}

func client(t *testing.T, port uint32, config *tls.Config, protocols ...func(*http.Protocols, bool)) *http.Client {
	t.Helper()
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, fmt.Sprintf("127.0.0.1:%d", port))
		},
		TLSClientConfig: config,
		Protocols:       new(http.Protocols),
	}
	if len(protocols) == 0 {
		transport.Protocols.SetHTTP1(true)
	}
	for _, protocol := range protocols {
		protocol(transport.Protocols, true)
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       20 * time.Second,
	}
}

type reply struct {
	*http.Response
	body string
}

func get(t *testing.T, c *http.Client, target string, headers ...string) reply {
	t.Helper()
	return send(t, c, http.MethodGet, target, "", headers...)
}

func send(t *testing.T, c *http.Client, method, target, body string, headers ...string) reply {
	t.Helper()
	request, err := http.NewRequest(method, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		if name == "Host" {
			request.Host = value
		}
		request.Header.Add(name, value)
	}
	response, err := c.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{response, string(text)}
}

type ca struct {
	t           *testing.T
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	serial      int64
}

func newCA(t *testing.T) *ca {
	t.Helper()
	c := &ca{t: t}
	c.certificate, c.key = c.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "authority of " + t.Name()}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	})
	return c
}

func (c *ca) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	c.serial++
	template.SerialNumber = big.NewInt(c.serial)
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := c.certificate, c.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		c.t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		c.t.Fatal(err)
	}
	return certificate, key
}

// issue returns a chain and key in PEM. Names with ":" are URIs.
func (c *ca) issue(names ...string) (chain, key []byte) {
	c.t.Helper()
	template := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	for _, name := range names {
		if strings.Contains(name, ":") {
			uri, err := url.Parse(name)
			if err != nil {
				c.t.Fatal(err)
			}
			template.URIs = append(template.URIs, uri)
			continue
		}
		template.DNSNames = append(template.DNSNames, name)
	}
	certificate, private := c.sign(template)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		c.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (c *ca) pair(names ...string) tls.Certificate {
	c.t.Helper()
	chain, key := c.issue(names...)
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		c.t.Fatal(err)
	}
	return pair
}

func (c *ca) resource(name string, names ...string) *resource.Resource {
	c.t.Helper()
	chain, key := c.issue(names...)
	return &resource.Resource{Name: name, Kind: &resource.Resource_Certificate{
		Certificate: &resource.Certificate{Chain: chain, Key: key},
	}}
}

func (c *ca) authority(name string) *resource.Resource {
	return &resource.Resource{Name: name, Kind: &resource.Resource_CertificateAuthority{
		CertificateAuthority: &resource.CertificateAuthority{
			Certificates: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.certificate.Raw}),
		},
	}}
}

func (c *ca) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.certificate)
	return pool
}

func client127(port uint32) string { return fmt.Sprintf("127.0.0.1:%d", port) }
