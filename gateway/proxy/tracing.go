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

// traceContext is the headers traceparent and tracestate (W3C Trace Context).
var traceContext propagation.TraceContext

// spans are those of an exchange: server for the client's request, and client for what was
// sent to a backend. They are nil where no trace is made.
type spans struct {
	server, client trace.Span
	// context has the span of server.
	context context.Context
}

// traced begins the span of a request. It goes on the client's trace. Whether it is sampled
// is the client's choice only where proxies in front are trusted: else anybody could have
// everything recorded.
func (x *exchange) traced() {
	tracer := x.proxy.settings.Tracer
	if tracer == nil {
		return
	}
	ctx := traceContext.Extract(x.in.Context(), propagation.HeaderCarrier(x.in.Header))
	if parent := trace.SpanContextFromContext(ctx); parent.IsSampled() && (x.site == nil || x.trustedHops() <= 0) {
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
	if x.site != nil {
		attributes = append(attributes, attribute.String("millrace.listener", x.site.name))
	}
	if x.rule != nil {
		// One of the configuration: a name of low cardinality (semantic conventions, HTTP).
		attributes = append(attributes, semconv.HTTPRoute(x.rule.route))
		x.spans.server.SetName(x.in.Method + " " + x.rule.route)
	}
	x.spans.server.SetAttributes(attributes...)
}

// sending begins the span of what is sent to the backend, and writes it into the request.
func (x *exchange) sending(request *http.Request) {
	if x.spans.server == nil {
		return
	}
	ctx := x.spans.context
	if x.spans.server.IsRecording() {
		ctx, x.spans.client = x.proxy.settings.Tracer.Start(ctx, x.in.Method, trace.WithSpanKind(trace.SpanKindClient),
			trace.WithAttributes(semconv.HTTPRequestMethodKey.String(x.in.Method), attribute.String("millrace.backend", x.share.backend)))
	}
	traceContext.Inject(ctx, propagation.HeaderCarrier(request.Header))
}

// received ends the span of what was sent, at the response's header.
func (x *exchange) received(response *http.Response, err error) {
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

// finished ends the span of the request.
func (x *exchange) finished(status int) {
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
