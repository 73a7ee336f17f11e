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

// Tracing is where spans of requests go, and how many.
type Tracing struct {
	// Endpoint is a collector of OTLP over gRPC, as http://HOST:PORT, or https; empty: none.
	Endpoint string
	// Ratio of requests that are sampled, from 0 to 1.
	Ratio float64
}

// instrumentation names what makes the spans.
const instrumentation = "github.com/millrace-lb/millrace/gateway/proxy"

// lastExport is how long the last spans have to leave at the end.
const lastExport = 5 * time.Second

// Validate reports what is wrong with the settings.
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

// start gives what makes spans, and what sends the last ones. Spans wait in a bounded queue;
// those of a collector that does not keep up are dropped, and requests do not wait.
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastExport)
		defer cancel()
		_ = provider.Shutdown(ctx)
	}
	return provider.Tracer(instrumentation), stop, nil
}

// sampler draws which requests are sampled. It follows a decision that has been made: for the
// request itself, or by a proxy in front that is trusted. A trace id is the client's choice,
// so nothing is decided by it.
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
