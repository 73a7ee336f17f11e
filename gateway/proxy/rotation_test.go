// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// TestAuthoritiesRotateUnderTraffic replaces a backend's CA. No request may fail, and the old CA must not be
// trusted.
func TestAuthoritiesRotateUnderTraffic(t *testing.T) {
	port, first, two := freePort(t), newCA(t), newCA(t)
	var certificate atomic.Pointer[tls.Certificate]
	shown := func(by *ca) {
		pair := by.pair("backend.example.com")
		certificate.Store(&pair)
	}
	shown(first)
	address := serveTLS(t, &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate.Load(), nil },
		NextProtos:     []string{"http/1.1"}, SessionTicketsDisabled: true,
	}, echo("a"))
	trusted := func(authorities ...*ca) *resource.Resource {
		var bundle [][]byte
		for _, each := range authorities {
			bundle = append(bundle, each.authority("ca").GetCertificateAuthority().GetCertificates())
		}
		return &resource.Resource{Name: "ca", Kind: &resource.Resource_CertificateAuthority{
			CertificateAuthority: &resource.CertificateAuthority{Certificates: bytes.Join(bundle, nil)},
		}}
	}
	with := &resource.BackendTLS{Hostname: "backend.example.com", CertificateAuthorities: []string{"ca"}}
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a")), trusted(first)),
		encrypted("a", address, 0, with))...)

	var served atomic.Int64
	var stop atomic.Bool
	var wait sync.WaitGroup
	for i := range 4 {
		c := client(t, port, nil)
		wait.Go(func() {
			for !stop.Load() {
				method, body := http.MethodGet, ""
				if i%2 == 1 {
					method, body = http.MethodPost, "body"
				}
				request, err := http.NewRequest(method, "http://a/", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				response, err := c.Do(request)
				if err != nil {
					t.Errorf("request failed: %v", err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				if response.StatusCode != http.StatusOK {
					t.Errorf("request: status %s", response.Status)
					return
				}
				served.Add(1)
			}
		})
	}
	goOn := func() {
		until := served.Load() + 100
		for deadline := time.Now().Add(20 * time.Second); served.Load() < until && !t.Failed(); pause(t.Context(), time.Millisecond) {
			if time.Now().After(deadline) {
				t.Error("no requests were served")
			}
		}
	}
	old, next := first, two
	for range 5 {
		goOn()
		f.change(trusted(old, next))
		goOn()
		shown(next)
		goOn()
		f.change(trusted(next))
		old, next = next, old
	}
	goOn()
	stop.Store(true)
	wait.Wait()

	// The removed CA is not trusted, because changed roots close the old connections.
	shown(next)
	third := newCA(t)
	f.change(trusted(old, third))
	if got := get(t, client(t, port, nil), "http://a/"); got.StatusCode != http.StatusBadGateway {
		t.Errorf("certificate of a removed CA: %s", got.Status)
	}
}
