// SPDX-License-Identifier: Apache-2.0

package lbproxy_test

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/util/cert"

	"github.com/millrace-lb/millrace/gateway/route/routetest"
)

// TestMetricsRequireClientCertificate checks probes and metrics with and without a certificate of the
// controller's CA, which is replaced while the proxy runs.
func TestMetricsRequireClientCertificate(t *testing.T) {
	w := newWorld(t)
	w.set(t, "one")
	w.control(t)
	r := w.run(t)
	r.ready(t, http.StatusOK)
	own, key, err := routetest.Certificate("client")
	must(t, err)
	client, err := tls.X509KeyPair(own, key)
	must(t, err)
	other, key, err := cert.GenerateSelfSignedCertKey("client", nil, nil)
	must(t, err)
	stranger, err := tls.X509KeyPair(other, key)
	must(t, err)

	get := func(path string, certificates ...tls.Certificate) (int, string, error) {
		status, _, body, err := getURL("https://"+r.admin+path, &tls.Config{InsecureSkipVerify: true, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if len(certificates) == 0 {
				return &tls.Certificate{}, nil
			}
			return &certificates[0], nil
		}})
		return status, body, err
	}
	if _, _, err := get("/metrics", client); err == nil {
		t.Error("a certificate of an unknown CA: accepted, want a failed handshake")
	}
	w.write(t, "ca.crt", own)
	if status, body, err := get("/metrics", client); err != nil || status != http.StatusOK || !strings.Contains(body, "millrace_proxy_configuration_info") {
		t.Errorf("with a certificate: %d, %v, want metrics", status, err)
	}
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 401, "//metrics": 401, "/": 401} {
		if status, _, err := get(path); err != nil || status != want {
			t.Errorf("%s without a certificate: %d, %v, want %d", path, status, err, want)
		}
	}
	if _, _, err := get("/metrics", stranger); err == nil {
		t.Error("a certificate of another CA: accepted, want a failed handshake")
	}
	if status, _, _, err := getURL("http://"+r.admin+"/healthz", nil); err != nil || status != http.StatusBadRequest {
		t.Errorf("plain HTTP: %d, %v, want 400", status, err)
	}
}
