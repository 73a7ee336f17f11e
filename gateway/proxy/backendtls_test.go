// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func serveTLS(t *testing.T, config *tls.Config, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.TLS = config
	server.EnableHTTP2 = len(config.NextProtos) == 0
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func encrypted(name, address string, protocol resource.Backend_Protocol, with *resource.BackendTLS) []*resource.Resource {
	resources := backend(name, address)
	resources[0].GetBackend().Tls = with
	resources[0].GetBackend().Protocol = protocol
	return resources
}

func TestBackendTLS(t *testing.T) {
	port, authority, others, clients := freePort(t), newCA(t), newCA(t), newCA(t)
	var plain int
	server := func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			plain++
		}
		w.Header().Set("X-Name", r.TLS.ServerName)
		w.Header().Set("X-Backend-Proto", r.Proto)
		if len(r.TLS.PeerCertificates) > 0 {
			w.Header().Set("X-Client", r.TLS.PeerCertificates[0].DNSNames[0])
		}
	}
	address := serveTLS(t, &tls.Config{
		Certificates: []tls.Certificate{authority.pair("backend.example.com", "spiffe://example.com/backend")}, MaxVersion: tls.VersionTLS12,
		ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: clients.pool(),
	}, server)
	const authorityName = "authority"
	uri := &resource.SubjectAltName{Kind: &resource.SubjectAltName_Uri{Uri: "spiffe://example.com/backend"}}
	wrongURI := &resource.SubjectAltName{Kind: &resource.SubjectAltName_Uri{Uri: "spiffe://example.com/other"}}
	name := &resource.SubjectAltName{Kind: &resource.SubjectAltName_Hostname{Hostname: "backend.example.com"}}
	tests := map[string]struct {
		tls      *resource.BackendTLS
		protocol resource.Backend_Protocol
		status   int
		client   string
	}{
		"good":          {&resource.BackendTLS{Hostname: "backend.example.com", CertificateAuthorities: []string{authorityName}}, 0, 200, ""},
		"good-h2":       {&resource.BackendTLS{Hostname: "backend.example.com", CertificateAuthorities: []string{authorityName}}, resource.Backend_H2C, 200, ""},
		"two-roots":     {&resource.BackendTLS{Hostname: "backend.example.com", CertificateAuthorities: []string{"others", authorityName}}, 0, 200, ""},
		"wrong-name":    {&resource.BackendTLS{Hostname: "other.example.com", CertificateAuthorities: []string{authorityName}}, 0, 502, ""},
		"wrong-root":    {&resource.BackendTLS{Hostname: "backend.example.com", CertificateAuthorities: []string{"others"}}, 0, 502, ""},
		"system-root":   {&resource.BackendTLS{Hostname: "backend.example.com"}, 0, 502, ""},
		"san-uri":       {&resource.BackendTLS{Hostname: "other.example.com", CertificateAuthorities: []string{authorityName}, SubjectAltNames: []*resource.SubjectAltName{wrongURI, uri}}, 0, 200, ""},
		"san-hostname":  {&resource.BackendTLS{Hostname: "other.example.com", CertificateAuthorities: []string{authorityName}, SubjectAltNames: []*resource.SubjectAltName{name}}, 0, 200, ""},
		"san-wrong":     {&resource.BackendTLS{Hostname: "backend.example.com", CertificateAuthorities: []string{authorityName}, SubjectAltNames: []*resource.SubjectAltName{wrongURI}}, 0, 502, ""},
		"our-own-cert":  {&resource.BackendTLS{Hostname: "backend.example.com", CertificateAuthorities: []string{authorityName}, ClientCertificate: "client"}, 0, 200, "gateway"},
		"min-version":   {&resource.BackendTLS{Hostname: "backend.example.com", CertificateAuthorities: []string{authorityName}, MinVersion: tls.VersionTLS13}, 0, 502, ""},
		"suite":         {&resource.BackendTLS{Hostname: "backend.example.com", CertificateAuthorities: []string{authorityName}, CipherSuites: []uint32{uint32(tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384)}}, 0, 200, ""},
		"other-suite":   {&resource.BackendTLS{Hostname: "backend.example.com", CertificateAuthorities: []string{authorityName}, CipherSuites: []uint32{uint32(tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384)}}, 0, 502, ""},
		"unverified":    {&resource.BackendTLS{Unverified: true}, 0, 200, ""},
		"unverified-h2": {&resource.BackendTLS{Unverified: true}, resource.Backend_H2C, 200, ""},
		"san-and-roots": {&resource.BackendTLS{Hostname: "backend.example.com", CertificateAuthorities: []string{"others"}, SubjectAltNames: []*resource.SubjectAltName{uri}}, 0, 502, ""},
	}
	resources := one(httpListener("l", port, nil), authority.authority(authorityName), others.authority("others"),
		clients.resource("client", "gateway"))
	for name, tc := range tests {
		resources = append(resources, encrypted(name, address, tc.protocol, tc.tls)...)
		resources = append(resources, routes("r/"+name, "l", &resource.Hostname{Name: name}, toward("/", name)))
	}
	start(t, nil, resources...)
	c := client(t, port, nil)
	for name, tc := range tests {
		got := get(t, c, "http://"+name+"/")
		if got.StatusCode != tc.status {
			t.Errorf("%s: %d; want %d", name, got.StatusCode, tc.status)
			continue
		}
		if tc.status != 200 {
			continue
		}
		if got.Header.Get("X-Name") != tc.tls.Hostname || got.Header.Get("X-Client") != tc.client {
			t.Errorf("%s: server name %q and client %q; want %q and %q", name, got.Header.Get("X-Name"),
				got.Header.Get("X-Client"), tc.tls.Hostname, tc.client)
		}
		if want := map[resource.Backend_Protocol]string{0: "HTTP/1.1", resource.Backend_H2C: "HTTP/2.0"}[tc.protocol]; got.Header.Get("X-Backend-Proto") != want {
			t.Errorf("%s: %s; want %s", name, got.Header.Get("X-Backend-Proto"), want)
		}
	}
	if plain > 0 {
		t.Errorf("%d requests without TLS", plain)
	}
}

func TestBackendTLSAfterAChange(t *testing.T) {
	port, authority, others := freePort(t), newCA(t), newCA(t)
	resumed := make(chan bool, 10)
	address := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{authority.pair("backend.example.com")}, NextProtos: []string{"http/1.1"}},
		func(w http.ResponseWriter, r *http.Request) {
			resumed <- r.TLS.DidResume
			w.Header().Set("Connection", "close")
		})
	with := &resource.BackendTLS{Hostname: "backend.example.com", CertificateAuthorities: []string{"authority"}}
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a")), authority.authority("authority")),
		encrypted("a", address, 0, with))...)
	c := client(t, port, nil)
	for i, want := range []bool{false, true} {
		if got := get(t, c, "http://a/"); got.StatusCode != 200 {
			t.Fatalf("request %d: %d; want 200", i, got.StatusCode)
		}
		if did := <-resumed; did != want {
			t.Errorf("request %d: resumed %v; want %v", i, did, want)
		}
	}
	f.change(others.authority("authority"))
	if got := get(t, c, "http://a/"); got.StatusCode != 502 {
		t.Errorf("after the removal of its CA, the backend returns %d; want 502", got.StatusCode)
	}
}
