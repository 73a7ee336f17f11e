// SPDX-License-Identifier: Apache-2.0

package lbproxy

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

// Tracing configures the export and sampling of spans.
type Tracing struct {
	// Endpoint is an OTLP collector over gRPC, http://HOST:PORT or https://HOST:PORT; empty disables tracing.
	Endpoint string
	// Ratio of sampled requests, from 0 to 1.
	Ratio float64
}

const instrumentation = "github.com/millrace-lb/millrace/gateway/proxy"

const exportTimeout = 5 * time.Second

// Validate returns an error if a setting is invalid.
func (t Tracing) Validate() error {
	if t.Ratio < 0 || t.Ratio > 1 || t.Ratio != t.Ratio {
		return fmt.Errorf("the ratio of sampled requests is %v, not from 0 to 1", t.Ratio)
	}
	if t.Endpoint == "" {
		return nil
	}
	at, err := url.Parse(t.Endpoint)
	if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Port() == "" {
		return fmt.Errorf("the collector %q is not http://HOST:PORT or https://HOST:PORT", t.Endpoint)
	}
	return nil
}

// start returns a tracer and its flush. Spans are dropped if the collector is too slow, so that requests are
// not delayed.
func (t Tracing) start(ctx context.Context, log *slog.Logger) (trace.Tracer, func(), error) {
	if t.Endpoint == "" {
		return nil, func() {}, nil
	}
	if err := t.Validate(); err != nil {
		return nil, nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("spans could not be exported", "error", err) }))
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(t.Endpoint))
	if err != nil {
		return nil, nil, fmt.Errorf("prepare to export spans to %s: %w", t.Endpoint, err)
	}
	pod, _ := os.Hostname()
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithSampler(sampler{t.Ratio}),
		sdktrace.WithResource(resource.NewWithAttributes(semconv.SchemaURL,
			semconv.ServiceName("millrace-lbproxy"), semconv.ServiceInstanceID(pod))),
	)
	stop := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exportTimeout)
		defer cancel()
		_ = provider.Shutdown(ctx)
	}
	return provider.Tracer(instrumentation), stop, nil
}

// sampler samples at random, except for decisions of a local parent or trusted proxy. Clients choose the trace
// ID, so it is ignored.
type sampler struct{ ratio float64 }

func (s sampler) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	parent := trace.SpanContextFromContext(p.ParentContext)
	result := sdktrace.SamplingResult{Decision: sdktrace.Drop, Tracestate: parent.TraceState()}
	local := parent.IsValid() && !parent.IsRemote()
	if parent.IsSampled() || !local && rand.Float64() < s.ratio {
		result.Decision = sdktrace.RecordAndSample
	}
	return result
}

func (s sampler) Description() string { return fmt.Sprintf("drawn, %v", s.ratio) }
