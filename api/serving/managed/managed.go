// SPDX-License-Identifier: Apache-2.0

// Package managed adds HTTP servers of package serving to a controller-runtime manager, whose own servers
// have no bounds on connections.
package managed

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	"github.com/millrace-lb/millrace/api/serving"
)

// Server configures an HTTP server.
type Server struct {
	Name    string
	Address string
	Limits  serving.Limits
	// TLS is the TLS configuration; nil for plain HTTP.
	TLS *tls.Config
}

// Add opens a listener and serves on it in every replica, even before the caches are synced.
func Add(mgr manager.Manager, s Server, handler http.Handler) error {
	var listener net.Listener
	listener, err := serving.Listen(s.Address, s.Limits)
	if err != nil {
		return fmt.Errorf("serve %s: %w", s.Name, err)
	}
	if s.TLS != nil {
		listener = tls.NewListener(listener, s.TLS)
	}
	if err := mgr.Add(&manager.Server{Name: s.Name, Server: serving.NewHTTP(handler), Listener: listener}); err != nil {
		return fmt.Errorf("add the server of %s: %w", s.Name, err)
	}
	return nil
}

// AddProbes serves /healthz and /readyz at an address, unless it is "0". /readyz succeeds when ready returns
// nil.
func AddProbes(mgr manager.Manager, address, check string, ready healthz.Checker) error {
	if address == "0" {
		return nil
	}
	mux := http.NewServeMux()
	for path, handler := range map[string]*healthz.Handler{
		"/healthz": {Checks: map[string]healthz.Checker{"ping": healthz.Ping}},
		"/readyz":  {Checks: map[string]healthz.Checker{check: ready}},
	} {
		mux.Handle(path, http.StripPrefix(path, handler))
		mux.Handle(path+"/", http.StripPrefix(path, handler))
	}
	return Add(mgr, Server{Name: "probes", Address: address, Limits: serving.Local()}, mux)
}

// Metrics configures the server of metrics.
type Metrics struct {
	Address string
	// Secure requires TLS and a token that the API server authenticates and authorizes.
	Secure bool
	// CertDir contains tls.crt and tls.key. Without these files, the certificate is self-signed.
	CertDir string
}

// AddMetrics serves the metrics of controller-runtime's registry at /metrics.
func AddMetrics(mgr manager.Manager, m Metrics) error {
	if m.Address == "0" {
		return nil
	}
	handler := promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
	server := Server{Name: "metrics", Address: m.Address, Limits: serving.Local()}
	if m.Secure {
		filter, err := filters.WithAuthenticationAndAuthorization(mgr.GetConfig(), mgr.GetHTTPClient())
		if err != nil {
			return fmt.Errorf("authenticate readers of metrics: %w", err)
		}
		if handler, err = filter(mgr.GetLogger().WithName("metrics"), handler); err != nil {
			return fmt.Errorf("authenticate readers of metrics: %w", err)
		}
		if server.TLS, err = certificate(mgr, m.CertDir); err != nil {
			return fmt.Errorf("the certificate of metrics: %w", err)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", handler)
	return Add(mgr, server, mux)
}

// certificate returns a TLS configuration with the certificate in a directory, which is reloaded when it is
// replaced, or else with a self-signed certificate.
func certificate(mgr manager.Manager, dir string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	file, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if dir != "" && exists(file) && exists(key) {
		watcher, err := certwatcher.New(file, key)
		if err != nil {
			return nil, err
		}
		config.GetCertificate = watcher.GetCertificate
		return config, mgr.Add(watcher)
	}
	pair, err := serving.SelfSigned("localhost")
	config.Certificates = []tls.Certificate{pair}
	return config, err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
