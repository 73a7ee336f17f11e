// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"net"
	"net/http"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"
)

// traceContext handles the headers traceparent and tracestate (W3C Trace Context).
var traceContext propagation.TraceContext

// spans are nil without tracing: server for the client's request, client for the backend request.
type spans struct {
	server, client trace.Span
	context        context.Context
}

// startServerSpan uses the client's sampling decision only behind trusted proxies; otherwise any client
// could enable sampling.
func (x *transaction) startServerSpan() {
	tracer := x.proxy.settings.Tracer
	if tracer == nil {
		return
	}
	ctx := traceContext.Extract(x.in.Context(), propagation.HeaderCarrier(x.in.Header))
	if parent := trace.SpanContextFromContext(ctx); parent.IsSampled() && (x.virtualHost == nil || x.trustedHops() <= 0) {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent.WithTraceFlags(parent.TraceFlags().WithSampled(false)))
	}
	x.spans.context, x.spans.server = tracer.Start(ctx, x.in.Method, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(x.begun))
	if !x.spans.server.IsRecording() {
		return
	}
	client, _, err := net.SplitHostPort(x.in.RemoteAddr)
	if err != nil {
		client = x.in.RemoteAddr
	}
	attributes := []attribute.KeyValue{
		semconv.HTTPRequestMethodKey.String(x.in.Method),
		semconv.URLScheme(x.scheme()),
		semconv.URLPath(x.in.URL.Path),
		semconv.ServerAddress(x.host),
		semconv.ClientAddress(client),
		semconv.NetworkProtocolVersion(strconv.Itoa(x.in.ProtoMajor) + "." + strconv.Itoa(x.in.ProtoMinor)),
	}
	if x.virtualHost != nil {
		attributes = append(attributes, attribute.String("millrace.listener", x.virtualHost.Name))
	}
	if x.rule != nil {
		// Low cardinality, as required by the semantic conventions for HTTP.
		attributes = append(attributes, semconv.HTTPRoute(x.rule.route))
		x.spans.server.SetName(x.in.Method + " " + x.rule.route)
	}
	x.spans.server.SetAttributes(attributes...)
}

// startClientSpan starts the client span and injects it into the backend request.
func (x *transaction) startClientSpan(request *http.Request) {
	if x.spans.server == nil {
		return
	}
	ctx := x.spans.context
	if x.spans.server.IsRecording() {
		ctx, x.spans.client = x.proxy.settings.Tracer.Start(ctx, x.in.Method, trace.WithSpanKind(trace.SpanKindClient),
			trace.WithAttributes(semconv.HTTPRequestMethodKey.String(x.in.Method), attribute.String("millrace.backend", x.weighted.backend)))
	}
	traceContext.Inject(ctx, propagation.HeaderCarrier(request.Header))
}

// received ends the client span at the response header.
func (x *transaction) received(response *http.Response, err error) {
	span := x.spans.client
	if span == nil {
		return
	}
	if x.endpoint != nil {
		span.SetAttributes(
			semconv.ServerAddress(x.endpoint.Address.Addr().String()), semconv.ServerPort(int(x.endpoint.Address.Port())),
			semconv.HTTPRequestResendCount(max(x.attempts-1, 0)))
	}
	if response != nil {
		span.SetAttributes(semconv.HTTPResponseStatusCode(response.StatusCode))
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

func (x *transaction) finished(status int) {
	span := x.spans.server
	if span == nil {
		return
	}
	span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, http.StatusText(status))
	}
	span.End()
}
