// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func (p *Proxy) recordEnd(x *transaction, w *responseWriter) {
	took := time.Since(x.begun)
	x.finished(w.status)
	listener := ""
	if x.virtualHost != nil {
		listener = x.virtualHost.Name
		x.virtualHost.State.metrics.observe(w.status, took)
	}
	if x.rule != nil {
		p.metrics.route(x.rule.route, w.status)
	}
	if p.settings.AccessLog == nil {
		return
	}
	attributes := make([]slog.Attr, 0, 20)
	add := func(a slog.Attr) { attributes = append(attributes, a) }
	add(slog.String("client", x.in.RemoteAddr))
	add(slog.String("protocol", x.in.Proto))
	add(slog.String("method", x.in.Method))
	add(slog.String("host", x.in.Host))
	add(slog.String("path", x.in.URL.EscapedPath()))
	add(slog.Int("status", w.status))
	add(slog.Int64("bytes", w.bytes))
	add(slog.Float64("seconds", took.Seconds()))
	add(slog.String("listener", listener))
	if x.rule != nil {
		add(slog.String("route", x.rule.route))
	}
	if x.weighted != nil {
		add(slog.String("backend", x.weighted.backend))
	}
	if x.endpoint != nil {
		add(slog.String("endpoint", x.endpoint.Address.String()))
		add(slog.Int("attempts", x.attempts))
	}
	if x.spans.server != nil && x.spans.server.SpanContext().IsSampled() {
		add(slog.String("trace", x.spans.server.SpanContext().TraceID().String()))
	}
	if x.err != nil {
		add(slog.String("error", x.err.Error()))
	}
	p.settings.AccessLog.LogAttrs(context.Background(), slog.LevelInfo, "request", attributes...)
}

// Admin returns the handler of /readyz, /healthz and /metrics, which must not be exposed to clients.
func (p *Proxy) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !p.Ready() {
			http.Error(w, "no configuration yet, or shutting down", http.StatusServiceUnavailable)
		}
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.metrics.registry, promhttp.HandlerOpts{}))
	return mux
}
