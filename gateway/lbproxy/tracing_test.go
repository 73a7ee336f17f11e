// SPDX-License-Identifier: Apache-2.0

package lbproxy

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"github.com/millrace-lb/millrace/gateway/proxy"
	"github.com/millrace-lb/millrace/gateway/resource"
)

type receiver struct {
	collectorv1.UnimplementedTraceServiceServer
	mutex sync.Mutex
	spans []*tracev1.Span
}

func (r *receiver) Export(_ context.Context, request *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, of := range request.GetResourceSpans() {
		for _, scope := range of.GetScopeSpans() {
			r.spans = append(r.spans, scope.GetSpans()...)
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func (r *receiver) listen(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return "http://" + listener.Addr().String()
}

// traced returns the exported spans and the traceparent of the backend request.
func traced(t *testing.T, tracing Tracing, trustedHops uint32, parent string) (spans []*tracev1.Span, received string) {
	t.Helper()
	var collected receiver
	if tracing.Endpoint != "" {
		tracing.Endpoint = collected.listen(t)
	}
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { received = r.Header.Get("Traceparent") }))
	t.Cleanup(backend.Close)
	tracer, stop, err := tracing.start(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	settings := proxy.Defaults()
	settings.Address, settings.DrainWait, settings.DrainGrace, settings.Tracer = "127.0.0.1", 0, 200*time.Millisecond, tracer
	served := proxy.New(settings)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(free.Addr().String())
	_ = free.Close()
	served.Apply(proxy.Update{Version: "1", Whole: true, Resources: site(at, backend.Listener.Addr().String(), trustedHops)})
	request, err := http.NewRequest(http.MethodGet, "http://"+at.String()+"/cart?secret", nil)
	if err != nil {
		t.Fatal(err)
	}
	if parent != "" {
		request.Header.Set("Traceparent", parent)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("response %+v, error %v", response, err)
	}
	_ = response.Body.Close()
	// The span ends before Shutdown returns.
	if err := served.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop()
	collected.mutex.Lock()
	defer collected.mutex.Unlock()
	return collected.spans, received
}

func site(at netip.AddrPort, backend string, trustedHops uint32) []*resource.Resource {
	to := netip.MustParseAddrPort(backend)
	return []*resource.Resource{
		{Name: "l", Kind: &resource.Resource_Listener{Listener: &resource.Listener{
			Port: 80, TargetPort: uint32(at.Port()), Protocol: resource.Listener_HTTP, TrustedHops: trustedHops,
		}}},
		{Name: "g", Kind: &resource.Resource_RouteGroup{RouteGroup: &resource.RouteGroup{
			Listeners: []string{"l"}, Hostname: &resource.Hostname{}, Rules: []*resource.Rule{{
				Route: "httproute/default/shop/0", Match: &resource.Match{Path: &resource.PathMatch{Value: "/"}},
				Backends: []*resource.WeightedBackend{{Backend: "b", Weight: 1}},
			}},
		}}},
		{Name: "b", Kind: &resource.Resource_Backend{Backend: &resource.Backend{Endpoints: "e"}}},
		{Name: "e", Kind: &resource.Resource_Endpoints{Endpoints: &resource.Endpoints{Endpoints: []*resource.Endpoint{
			{Address: to.Addr().String(), Port: uint32(to.Port())},
		}}}},
	}
}

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
)

func TestTracing(t *testing.T) {
	collected := Tracing{Endpoint: "set", Ratio: 0}
	all := Tracing{Endpoint: "set", Ratio: 1}
	sampled, unsampled := "00-"+traceID+"-"+spanID+"-01", "00-"+traceID+"-"+spanID+"-00"
	for name, test := range map[string]struct {
		tracing  Tracing
		trusted  uint32
		parent   string
		spans    int
		received string // received is prefix*suffix
	}{
		"disabled, without a parent":             {Tracing{Ratio: 1}, 0, "", 0, "*"},
		"disabled, with a parent":                {Tracing{Ratio: 1}, 0, sampled, 0, sampled + "*"},
		"all":                                    {all, 0, "", 2, "00-*-01"},
		"all, trace of a client":                 {all, 0, unsampled, 2, "00-" + traceID + "-*-01"},
		"none":                                   {collected, 0, "", 0, "00-*-00"},
		"ratio 0, parent of an untrusted client": {collected, 0, sampled, 0, "00-" + traceID + "-*-00"},
		"ratio 0, parent of a trusted proxy":     {collected, 1, sampled, 2, "00-" + traceID + "-*-01"},
	} {
		t.Run(name, func(t *testing.T) {
			spans, received := traced(t, test.tracing, test.trusted, test.parent)
			prefix, suffix, _ := strings.Cut(test.received, "*")
			if len(spans) != test.spans || !strings.HasPrefix(received, prefix) || !strings.HasSuffix(received, suffix) {
				t.Fatalf("%d spans, the backend received %q; want %d and %q", len(spans), received, test.spans, test.received)
			}
			if test.spans == 2 {
				checkSpans(t, spans, received, test.parent)
			}
		})
	}
}

func checkSpans(t *testing.T, spans []*tracev1.Span, received, parent string) {
	t.Helper()
	byKind := map[tracev1.Span_SpanKind]*tracev1.Span{}
	for _, span := range spans {
		byKind[span.GetKind()] = span
	}
	server, client := byKind[tracev1.Span_SPAN_KIND_SERVER], byKind[tracev1.Span_SPAN_KIND_CLIENT]
	if server == nil || client == nil {
		t.Fatalf("spans = %v, want a server and a client span", spans)
	}
	if want := fmt.Sprintf("00-%x-%x-01", client.GetTraceId(), client.GetSpanId()); received != want {
		t.Errorf("the backend received %q; want the client span %q", received, want)
	}
	if fmt.Sprintf("%x", client.GetParentSpanId()) != fmt.Sprintf("%x", server.GetSpanId()) {
		t.Error("the client span is not a child of the server span")
	}
	if parent != "" && fmt.Sprintf("%x %x", server.GetTraceId(), server.GetParentSpanId()) != traceID+" "+spanID {
		t.Errorf("server span: trace %x, parent %x", server.GetTraceId(), server.GetParentSpanId())
	}
	attributes := map[string]string{"name": server.GetName()}
	for _, attribute := range server.GetAttributes() {
		attributes[attribute.GetKey()] = strings.Trim(attribute.GetValue().String(), `"`)
	}
	for key, want := range map[string]string{
		"name": "GET httproute/default/shop/0", "http.route": "httproute/default/shop/0", "url.path": "/cart", "millrace.listener": "l",
		"http.response.status_code": "200", "http.request.method": "GET", "url.scheme": "http", "client.address": "127.0.0.1",
	} {
		if !strings.Contains(attributes[key], want) {
			t.Errorf("%s is %q; want %q", key, attributes[key], want)
		}
	}
	if strings.Contains(fmt.Sprint(spans), "secret") {
		t.Error("a span contains the query")
	}
}

func TestNoCollector(t *testing.T) {
	tracer, stop, err := Tracing{Endpoint: "http://127.0.0.1:1", Ratio: 1}.start(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for range 10_000 {
		_, span := tracer.Start(t.Context(), "x")
		span.End()
	}
	if took := time.Since(begun); took > exportTimeout {
		t.Errorf("10,000 spans took %s", took)
	}
	stop()
}

func TestTracingSettings(t *testing.T) {
	for _, wrong := range []Tracing{
		{Ratio: -1}, {Ratio: 1.1}, {Endpoint: "collector:4317"}, {Endpoint: "http://collector"}, {Endpoint: "unix:///x"},
	} {
		if _, _, err := wrong.start(t.Context(), slog.New(slog.DiscardHandler)); wrong.Validate() == nil && err == nil {
			t.Errorf("no error for %+v", wrong)
		}
	}
}
