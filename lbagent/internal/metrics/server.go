// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millrace-lb/millrace/api/serving"
)

// Health checks the agent; nil means healthy.
type Health struct {
	// Alive is the check of /healthz: on failure the agent should be restarted.
	Alive func() error
	// Ready is the check of /readyz: the node works.
	Ready func() error
}

// Protection restricts access to metrics. The zero value is unrestricted.
type Protection struct {
	// TLS is nil for plain HTTP.
	TLS    *tls.Config
	Filter func(http.Handler) http.Handler
}

// Listen opens an address, so that an invalid or used one is an error at start. flag is the name of its
// flag.
func Listen(address, flag string) (net.Listener, error) {
	listener, err := serving.Listen(address, serving.Local())
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	return listener, nil
}

// Serve serves /metrics until ctx is done.
func Serve(ctx context.Context, listener net.Listener, protection Protection, own ...prometheus.Collector) error {
	registry := prometheus.NewRegistry()
	process := collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})
	for _, c := range append(own, collectors.NewGoCollector(), process) {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	mux := http.NewServeMux()
	// Metrics that can be collected are served even if others fail.
	options := promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}
	mux.Handle("/metrics", promhttp.HandlerFor(registry, options))
	var handler http.Handler = mux
	if protection.Filter != nil {
		handler = protection.Filter(mux)
	}
	if protection.TLS != nil {
		listener = tls.NewListener(listener, protection.TLS)
	}
	return serve(ctx, listener, handler)
}

// ServeHealth serves /healthz and /readyz until ctx is done.
func ServeHealth(ctx context.Context, listener net.Listener, health Health) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", check(health.Alive))
	mux.HandleFunc("/readyz", check(health.Ready))
	return serve(ctx, listener, mux)
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := serving.NewHTTP(handler)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	}
	return ctx.Err()
}

func check(check func() error) http.HandlerFunc {
	return func(response http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(response, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(response, "ok\n")
	}
}
