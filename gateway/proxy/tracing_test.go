// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"net/http/httptest"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// BenchmarkTracing times a request that the proxy answers by itself: without tracing, and
// with spans that are dropped or sampled. What "off" takes is what a proxy without it would.
func BenchmarkTracing(b *testing.B) {
	sampled := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()))
	dropped := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample()))
	for _, of := range []struct {
		name   string
		tracer trace.Tracer
	}{
		{"off", nil}, {"noop", noop.NewTracerProvider().Tracer("")}, {"dropped", dropped.Tracer("")}, {"sampled", sampled.Tracer("")},
	} {
		b.Run(of.name, func(b *testing.B) {
			s := benchServer(b, of.tracer)
			request := httptest.NewRequest(http.MethodGet, "http://a.example/x", nil)
			b.ReportAllocs()
			for b.Loop() {
				s.handle(httptest.NewRecorder(), request)
			}
		})
	}
	// The part of tracing alone.
	b.Run("off, steps", func(b *testing.B) {
		x := &exchange{proxy: New(Defaults()), in: httptest.NewRequest(http.MethodGet, "http://a.example/x", nil)}
		b.ReportAllocs()
		for b.Loop() {
			x.traced()
			x.sending(x.in)
			x.received(nil, nil)
			x.finished(http.StatusOK)
		}
	})
}

// benchServer redirects all requests. It listens nowhere.
func benchServer(b *testing.B, tracer trace.Tracer) *server {
	b.Helper()
	settings := Defaults()
	settings.Tracer = tracer
	p := New(settings)
	redirect := &resource.Filter{Kind: &resource.Filter_Redirect{Redirect: &resource.Redirect{Scheme: "https", Status: 301}}}
	made, err := (&builder{settings: p.upstream, metrics: p.metrics, secret: p.secret, old: &table{}}).build(Update{
		Version: "1", Whole: true, Resources: all(one(httpListener("l", 10080, nil), routes("g", "l", hostname("a.example"), toward("/", "a", redirect))),
			backend("a", "198.18.1.1:80")),
	})
	if err != nil {
		b.Fatal(err)
	}
	p.table.Store(made)
	return &server{proxy: p, number: 10080}
}

// TestTracingOffCostsNothing holds that a proxy without tracing allocates nothing for it.
func TestTracingOffCostsNothing(t *testing.T) {
	x := &exchange{proxy: New(Defaults()), in: httptest.NewRequest(http.MethodGet, "http://a.example/x", nil)}
	if allocations := testing.AllocsPerRun(100, func() {
		x.traced()
		x.sending(x.in)
		x.received(nil, nil)
		x.finished(http.StatusOK)
	}); allocations != 0 {
		t.Errorf("%v allocations for a request", allocations)
	}
}
