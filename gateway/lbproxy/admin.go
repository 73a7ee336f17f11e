// SPDX-License-Identifier: Apache-2.0

package lbproxy

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"os"

	"github.com/millrace-lb/millrace/api/serving"
)

// newAdmin returns the HTTPS server of the probes and metrics. Probes are open to all clients; /metrics
// requires a client certificate of a CA in file, because a proxy cannot review tokens and must not receive
// tokens that other programs accept.
func newAdmin(handler http.Handler, file string) (*http.Server, error) {
	certificate, err := serving.SelfSigned("lbproxy")
	if err != nil {
		return nil, err
	}
	server := serving.NewHTTP(authenticate(handler))
	// Any client can cause failed handshakes, so they are not logged.
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS12,
		// The file is read at each handshake, because the kubelet replaces it.
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return &tls.Config{
				MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true,
				Certificates: []tls.Certificate{certificate},
				ClientAuth:   tls.VerifyClientCertIfGiven, ClientCAs: authorities(file),
			}, nil
		},
	}
	return server, nil
}

// authorities returns the CAs in file. It never returns nil, which would mean the CAs of the system.
func authorities(file string) *x509.CertPool {
	pool := x509.NewCertPool()
	if content, err := os.ReadFile(file); err == nil {
		pool.AppendCertsFromPEM(content)
	}
	return pool
}

func authenticate(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/healthz", "/readyz":
		default:
			if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
				http.Error(w, "a client certificate of the gateway is required", http.StatusUnauthorized)
				return
			}
		}
		handler.ServeHTTP(w, r)
	})
}
