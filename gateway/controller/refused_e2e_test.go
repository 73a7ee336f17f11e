// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package controller_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/controller"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/distribution"
	dataplane "github.com/millrace-lb/millrace/gateway/proxy"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const ofProxies = "127.77.0.1"

// olderProxy simulates a proxy of an older version that does not support a kind of filter.
type olderProxy struct {
	served  *dataplane.Proxy
	unknown func(*resource.Filter) bool
}

func (e *environment) olderProxy(t *testing.T, address, token string, unknown func(*resource.Filter) bool) {
	t.Helper()
	settings := dataplane.Defaults()
	settings.Address, settings.DrainWait, settings.DrainGrace = ofProxies, 0, 0
	p := &olderProxy{served: dataplane.New(settings), unknown: unknown}
	e.follow(t, &distribution.Client{
		Address: address,
		Token:   func() (string, error) { return token, nil },
		Apply:   func(update distribution.Update) { must(t, p.apply(update)) }, Refused: p.served.Refused,
		Log: slog.New(slog.NewTextHandler(&controlplane.Log{}, nil)),
	})
	t.Cleanup(func() {
		// Without a grace period open connections are closed, which is an error.
		if err := p.served.Shutdown(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
			must(t, err)
		}
	})
}

func (p *olderProxy) apply(update distribution.Update) error {
	read := make([]*resource.Resource, 0, len(update.Changed))
	for _, r := range update.Changed {
		r, err := p.read(r)
		if err != nil {
			return err
		}
		read = append(read, r)
	}
	p.served.Apply(dataplane.Update{Version: update.Version, Whole: update.Whole, Resources: read, Removed: update.Removed})
	return nil
}

// read removes the unknown field of a message.
func (p *olderProxy) read(of *resource.Resource) (*resource.Resource, error) {
	if of.GetRouteGroup() == nil {
		return of, nil
	}
	read, is := proto.Clone(of).(*resource.Resource)
	if !is {
		return nil, errors.New("DeepCopyObject returned another type")
	}
	for _, rule := range read.GetRouteGroup().GetRules() {
		for i, filter := range rule.GetFilters() {
			if !p.unknown(filter) {
				continue
			}
			content, err := proto.Marshal(filter)
			if err != nil {
				return nil, err
			}
			rule.Filters[i] = &resource.Filter{}
			rule.Filters[i].ProtoReflect().SetUnknown(content)
		}
	}
	return read, nil
}

func refusingProxies(t *testing.T, owner string) float64 {
	t.Helper()
	return gauge(t, "millrace_gateway_rejecting_proxies", owner)
}

func gauge(t *testing.T, name, label string) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	must(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			if metric.GetLabel()[0].GetValue() == label {
				return metric.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func redirected(name, to string) *gatewayv1.HTTPRoute {
	target := gatewayv1.PreciseHostname(to)
	route := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	route.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: "edge"}}
	route.Spec.Hostnames = []gatewayv1.Hostname{gatewayv1.Hostname(name + ".example.com")}
	route.Spec.Rules = []gatewayv1.HTTPRouteRule{{Filters: []gatewayv1.HTTPRouteFilter{{
		Type: gatewayv1.HTTPRouteFilterRequestRedirect, RequestRedirect: &gatewayv1.HTTPRequestRedirectFilter{Hostname: &target},
	}}}}
	return route
}

func marked(route *gatewayv1.HTTPRoute) {
	rule := &route.Spec.Rules[0]
	rule.Filters = append(rule.Filters, gatewayv1.HTTPRouteFilter{
		Type:                   gatewayv1.HTTPRouteFilterResponseHeaderModifier,
		ResponseHeaderModifier: &gatewayv1.HTTPHeaderFilter{Set: []gatewayv1.HTTPHeader{{Name: "Marker", Value: "x"}}},
	})
}

func (e *environment) edit(t *testing.T, route *gatewayv1.HTTPRoute, change func(*gatewayv1.HTTPRoute)) {
	t.Helper()
	must(t, e.client.Get(t.Context(), client.ObjectKeyFromObject(route), route))
	before := client.MergeFrom(route.DeepCopy())
	change(route)
	must(t, e.client.Patch(t.Context(), route, before))
}

func (e *environment) answers(t *testing.T, port uint16, name string, status int, place string) {
	t.Helper()
	direct := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	eventually(t, func(ctx context.Context) error {
		at := "http://" + net.JoinHostPort(ofProxies, strconv.Itoa(int(port))) + "/"
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		if err != nil {
			return err
		}
		request.Host = name + ".example.com"
		answer, err := direct.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, answer.Body)
		if to := answer.Header.Get("Location"); answer.StatusCode != status || !strings.HasPrefix(to, place) {
			return fmt.Errorf("response from %s port %d = %s to %q, want %d to %q", name, port, answer.Status, to, status, place)
		}
		return nil
	})
}

func (e *environment) refusesAt(t *testing.T, gateway *gatewayv1.Gateway, count int, why string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := e.client.Get(ctx, client.ObjectKeyFromObject(gateway), gateway); err != nil {
			return err
		}
		got := meta.FindStatusCondition(gateway.Status.Conditions, model.ConditionResourcesRejected)
		switch {
		case count == 0 && got != nil, count > 0 && (got == nil || !strings.Contains(got.Message, why)):
			return fmt.Errorf("condition of the Gateway = %+v, want %d rejecting proxies and %q", got, count, why)
		}
		if metric := refusingProxies(t, "Gateway/"+namespace+"/"+gateway.Name); metric != float64(count) {
			return fmt.Errorf("the metric counts %v rejecting proxies, want %d", metric, count)
		}
		deployment := &appsv1.Deployment{}
		if err := e.client.Get(ctx, edge, deployment); err != nil {
			return err
		}
		if text := deployment.Annotations["millrace.io/rejected-resources"]; (text != "") != (count > 0) {
			return fmt.Errorf("rejected resources of the Deployment = %q", text)
		}
		return nil
	})
}

// refusedResourcesAreReported checks that rejections affect no other object, and are reported until repaired.
func refusedResourcesAreReported(t *testing.T, e *environment) {
	e.gatewayAPI(t)
	e.class(t)
	address, _ := e.run(t, nil)
	port, taken := controlplane.FreePort(t), controlplane.FreePort(t)
	gateway := e.gateway(t, fmt.Sprintf("HTTP/%d", port))
	other, web := redirected("other", "a.example.com"), redirected("web", "a.example.com")
	e.create(t, other)
	e.create(t, web)
	e.olderProxy(t, address, e.token(t, edge, infrastructure.Audience, e.pod(t, edge, "edge-1")),
		func(f *resource.Filter) bool { return f.GetResponseHeaders() != nil })
	e.answers(t, port, "web", http.StatusFound, "http://a.example.com")
	e.refusesAt(t, gateway, 0, "")

	// The rule with an unknown filter answers 500, and another route's change is served.
	toB := func(r *gatewayv1.HTTPRoute) { *r.Spec.Rules[0].Filters[0].RequestRedirect.Hostname = "b.example.com" }
	e.edit(t, web, func(r *gatewayv1.HTTPRoute) { toB(r); marked(r) })
	e.edit(t, other, toB)
	e.answers(t, port, "other", http.StatusFound, "http://b.example.com")
	e.answers(t, port, "web", http.StatusInternalServerError, "")
	e.refusesAt(t, gateway, 1, "rule 0 (httproute/shop/web/0): filter 1 is of a kind that is not known")
	noWritesAtRest(t, e)
	e.edit(t, web, func(r *gatewayv1.HTTPRoute) { r.Spec.Rules[0].Filters = r.Spec.Rules[0].Filters[:1] })
	e.refusesAt(t, gateway, 0, "")
	e.answers(t, port, "web", http.StatusFound, "http://b.example.com")

	blocker, err := net.Listen("tcp", net.JoinHostPort(ofProxies, strconv.Itoa(int(taken))))
	must(t, err)
	defer blocker.Close()
	must(t, e.client.Get(t.Context(), client.ObjectKeyFromObject(gateway), gateway))
	before := client.MergeFrom(gateway.DeepCopy())
	gateway.Spec.Listeners = append(gateway.Spec.Listeners,
		gatewayv1.Listener{Name: "taken", Port: gatewayv1.PortNumber(taken), Protocol: gatewayv1.HTTPProtocolType})
	must(t, e.client.Patch(t.Context(), gateway, before))
	why := fmt.Sprintf("listen at port %d", taken)
	e.refusesAt(t, gateway, 1, why)
	e.warnedOf(t, gateway, model.ReasonConfigurationRejected, why)
	e.answers(t, port, "web", http.StatusFound, "http://b.example.com")
	must(t, blocker.Close())
	e.edit(t, other, func(r *gatewayv1.HTTPRoute) { *r.Spec.Rules[0].Filters[0].RequestRedirect.Hostname = "c.example.com" })
	e.refusesAt(t, gateway, 0, "")
	e.answers(t, taken, "web", http.StatusFound, "http://b.example.com")
}

// noRoom checks that one change causes one write, even if other routes exceed the limit because of it.
func noRoom(t *testing.T, e *environment) {
	e.gatewayAPI(t)
	e.class(t)
	e.run(t, func(c *controller.Config) { c.NamespaceBytes = quantity.MustParse("20k") })
	e.gateway(t, "HTTP/80")
	grown := func(kilobytes int) (rules []gatewayv1.HTTPRouteRule) {
		rule := redirected("x", "a.example.com").Spec.Rules[0]
		for i := range kilobytes {
			path := fmt.Sprintf("/%s%d", strings.Repeat("x", 1000), i)
			rule.Matches = append(rule.Matches, gatewayv1.HTTPRouteMatch{Path: &gatewayv1.HTTPPathMatch{Value: &path}})
		}
		return append(rules, rule)
	}
	oldest := redirected("oldest", "a.example.com")
	oldest.Spec.Rules = grown(10)
	e.create(t, oldest)
	const others = 10
	// Creation timestamps have whole seconds.
	eventually(t, func(context.Context) error {
		if !time.Now().Truncate(time.Second).After(oldest.CreationTimestamp.Time) {
			return errors.New("the other routes would have the same age")
		}
		return nil
	})
	for i := range others {
		route := redirected(fmt.Sprintf("r-%d", i), "a.example.com")
		route.Spec.Rules = grown(15)
		e.create(t, route)
	}
	eventually(t, func(ctx context.Context) error { return e.refusedRoutes(ctx, others) })
	noWritesAtRest(t, e)
	before := e.statusWrites(t)["httproutes"]
	const changes = 3
	for i := range changes {
		e.edit(t, oldest, func(r *gatewayv1.HTTPRoute) { r.Spec.Rules = grown(11 + i) })
		eventually(t, func(ctx context.Context) error {
			if err := e.client.Get(ctx, client.ObjectKeyFromObject(oldest), oldest); err != nil {
				return err
			}
			if got := oldest.Status.Parents[0].Conditions[0].ObservedGeneration; got != oldest.Generation {
				return fmt.Errorf("observed generation = %d, want %d", got, oldest.Generation)
			}
			return nil
		})
	}
	noWritesAtRest(t, e)
	must(t, e.refusedRoutes(t.Context(), others))
	if writes := e.statusWrites(t)["httproutes"] - before; writes != changes {
		t.Errorf("%d status writes of routes for %d changes of one route", writes, changes)
	}
}

func (e *environment) refusedRoutes(ctx context.Context, want int) error {
	list, found := &gatewayv1.HTTPRouteList{}, 0
	if err := e.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		for _, parent := range list.Items[i].Status.Parents {
			if got := meta.FindStatusCondition(parent.Conditions, "Accepted"); got != nil && got.Reason == model.ReasonLimitExceeded {
				found++
			}
		}
	}
	if found != want {
		return fmt.Errorf("%d routes are over capacity, want %d", found, want)
	}
	return nil
}
