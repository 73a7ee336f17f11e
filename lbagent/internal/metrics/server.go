// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Health tells what is wrong with the agent; nil means nothing.
type Health struct {
	// Alive is for /healthz: the agent should be restarted where it fails.
	Alive func() error
	// Ready is for /readyz: the node does its work.
	Ready func() error
}

// Listen opens the address that Serve serves on, so that a wrong or taken one
// is found at the start.
func Listen(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %q for metrics and health: %w (--metrics-bind-address)", address, err)
	}
	return listener, nil
}

// Serve serves /metrics, /healthz and /readyz until ctx is done.
func Serve(ctx context.Context, listener net.Listener, health Health, own ...prometheus.Collector) error {
	registry := prometheus.NewRegistry()
	for _, c := range append(own, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})) {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	mux := http.NewServeMux()
	// What can be read is served, also where a part of it cannot.
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("/healthz", probe(health.Alive))
	mux.HandleFunc("/readyz", probe(health.Ready))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics and health on %s: %w", listener.Addr(), err)
	}
	return ctx.Err()
}

func probe(check func() error) http.HandlerFunc {
	return func(response http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(response, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(response, "ok\n")
	}
}
