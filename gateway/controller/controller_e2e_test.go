// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package controller_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millrace-lb/millrace/gateway/controller"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/test/blackhole"
)

func TestController(t *testing.T) {
	e := newEnvironment(t)
	for _, scenario := range []struct {
		name string
		run  func(*testing.T, *environment)
	}{
		{"an Ingress from its proxies to its status", fromProxiesToStatus},
		{"unrelated changes", unrelatedChanges},
		{"proxy authentication", whoIsLetIn},
		{"endpoints without a compilation", endpointsAlone},
		{"two replicas", twoReplicas},
		{"disconnected replica", cutOff},
		{"hanging watches", hungWatches},
		{"proxy that rejects a configuration", refusals},
		{"proxy that rejects resources", refusedResourcesAreReported},
		{"routes over capacity", noRoom},
		{"foreign objects", objectsOfOthers},
		{"events for problems", problemsAreEvents},
		{"status conflicts", conflictingStatuses},
		{"two installations", twoInstallations},
		{"Gateway API installed later", laterGatewayAPI},
		{"proxy tokens of Gateways", tokensOfGateways},
		{"layer 4 without proxies", layer4},
		{"namespaces with permission", permittedNamespaces},
		{"writes limited by a policy", limitedWrites},
	} {
		t.Run(scenario.name, func(t *testing.T) {
			t.Cleanup(func() { e.clean(t) })
			scenario.run(t, e)
		})
	}
}

func (e *environment) clean(t *testing.T) {
	ctx := context.Background()
	for _, namespace := range []string{namespace, systemNamespace} {
		for _, object := range []client.Object{
			&networkingv1.Ingress{}, &corev1.Service{}, &corev1.ServiceAccount{}, &corev1.ConfigMap{}, &appsv1.Deployment{},
			&policyv1.PodDisruptionBudget{}, &corev1.Pod{}, &discoveryv1.EndpointSlice{}, &eventsv1.Event{},
		} {
			must(t, e.client.DeleteAllOf(ctx, object, client.InNamespace(namespace), client.GracePeriodSeconds(0)))
		}
	}
}

// served waits until an Ingress has exactly these addresses and ports: "address port…".
func (e *environment) served(t *testing.T, ingress *networkingv1.Ingress, want ...string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := e.client.Get(ctx, client.ObjectKeyFromObject(ingress), ingress); err != nil {
			return err
		}
		var got []string
		for _, point := range ingress.Status.LoadBalancer.Ingress {
			text := point.IP
			for _, port := range point.Ports {
				text += fmt.Sprintf(" %d", port.Port)
			}
			got = append(got, text)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("Ingress %s is served at %q, want %q", ingress.Name, got, want)
		}
		return nil
	})
}

func fromProxiesToStatus(t *testing.T, e *environment) {
	_, stop := e.run(t, nil)
	ingress := e.ingress(t, "web", "web.example.com")
	for _, object := range []client.Object{&corev1.ServiceAccount{}, &corev1.ConfigMap{}, &corev1.Service{}, &appsv1.Deployment{}, &policyv1.PodDisruptionBudget{}} {
		e.await(t, object, shared)
	}
	e.assign(t, shared, "203.0.113.10", "2001:db8:cafe::10")
	e.served(t, ingress, "203.0.113.10 80", "2001:db8:cafe::10 80")
	e.metricsCertificate(t)

	deployment := &appsv1.Deployment{}
	e.await(t, deployment, shared)
	before := client.MergeFrom(deployment.DeepCopy())
	deployment.Spec.Template.Spec.Containers[0].Image = "example.com/other:v1"
	deployment.Annotations["note"] = "kept"
	must(t, e.client.Patch(t.Context(), deployment, before))
	eventually(t, func(ctx context.Context) error {
		if err := e.client.Get(ctx, shared, deployment); err != nil {
			return err
		}
		if image := deployment.Spec.Template.Spec.Containers[0].Image; image != "example.com/lbproxy:v1" {
			return fmt.Errorf("the image is %s", image)
		}
		return nil
	})
	if deployment.Annotations["note"] != "kept" {
		t.Errorf("a foreign annotation was removed: %v", deployment.Annotations)
	}

	noWritesAtRest(t, e)
	stop()
	e.run(t, nil)
	noWritesAtRest(t, e)

	class := "other"
	changed := client.MergeFrom(ingress.DeepCopy())
	ingress.Spec.IngressClassName = &class
	must(t, e.client.Patch(t.Context(), ingress, changed))
	e.served(t, ingress)
	for _, object := range []client.Object{&corev1.Service{}, &appsv1.Deployment{}, &corev1.ServiceAccount{}, &corev1.ConfigMap{}, &policyv1.PodDisruptionBudget{}} {
		eventually(t, func(ctx context.Context) error {
			if err := e.client.Get(ctx, shared, object); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%T was not deleted: %w", object, err)
			}
			return nil
		})
	}
}

// noWritesAtRest checks that the controller writes only its Lease while nothing changes.
func noWritesAtRest(t *testing.T, e *environment) {
	t.Helper()
	writes := e.writes(t)
	// Wait for writes in progress, then for a second without writes.
	eventually(t, func(context.Context) error {
		last := writes
		time.Sleep(time.Second)
		if writes = e.writes(t); len(writes) != len(last) {
			return fmt.Errorf("unexpected writes: %q", writes[len(last):])
		}
		return nil
	})
	time.Sleep(2 * time.Second)
	if again := e.writes(t); len(again) != len(writes) {
		t.Errorf("writes without any change: %q", again[len(writes):])
	}
}

// writes returns the controller's write requests, including those without effect.
func (e *environment) writes(t *testing.T, without ...string) []string {
	t.Helper()
	all, err := e.server.Writes()
	must(t, err)
	without = append(without, "leases", "tokenreviews", "selfsubjectaccessreviews")
	var ours []string
	for _, write := range all {
		if write.User == gatewayUser && !slices.Contains(without, write.Resource) {
			ours = append(ours, fmt.Sprintf("%s %s/%s %s/%s: %d", write.Verb, write.Resource, write.Subresource, write.Namespace, write.Name, write.Code))
		}
	}
	return ours
}

// unrelatedChanges checks that passes do not revert defaults and status fields set by the API server.
func unrelatedChanges(t *testing.T, e *environment) {
	e.run(t, nil)
	web := e.ingress(t, "web", "web.example.com")
	e.await(t, &policyv1.PodDisruptionBudget{}, shared)
	e.assign(t, shared, "203.0.113.10")
	e.served(t, web, "203.0.113.10 80")
	var before []string
	for i := range 5 {
		change := client.MergeFrom(web.DeepCopy())
		web.Annotations = map[string]string{"note": fmt.Sprint(i)}
		must(t, e.client.Patch(t.Context(), web, change))
		change = client.MergeFrom(web.DeepCopy())
		web.Spec.DefaultBackend = &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
			Name: fmt.Sprintf("missing-%d", i), Port: networkingv1.ServiceBackendPort{Number: 80},
		}}
		must(t, e.client.Patch(t.Context(), web, change))
		eventually(t, func(ctx context.Context) error {
			events := &eventsv1.EventList{}
			if err := e.client.List(ctx, events, client.InNamespace(namespace)); err != nil {
				return err
			}
			if !slices.ContainsFunc(events.Items, func(event eventsv1.Event) bool {
				return strings.Contains(event.Note, fmt.Sprintf("missing-%d", i))
			}) {
				return fmt.Errorf("no event for change %d", i)
			}
			return nil
		})
		if i == 0 {
			before = e.writes(t, "events")
		}
	}
	if after := e.writes(t, "events"); len(after) != len(before) {
		t.Errorf("%d writes for changes unrelated to any proxy: %q", len(after)-len(before), after[len(before):])
	}
}

func leadsTo(service string, addresses ...string) func(configuration) error {
	return func(has configuration) error {
		name := "endpoints/" + namespace + "/" + service + "/80"
		found, known := has[name]
		if !known {
			return fmt.Errorf("no resource %s, got %q", name, slices.Sorted(maps.Keys(has)))
		}
		var got []string
		for _, endpoint := range found.GetEndpoints().GetEndpoints() {
			got = append(got, endpoint.GetAddress())
		}
		if !slices.Equal(got, addresses) {
			return fmt.Errorf("%s are %q, want %q", name, got, addresses)
		}
		return nil
	}
}

func whoIsLetIn(t *testing.T, e *environment) {
	address, _ := e.run(t, nil)
	e.ingress(t, "web", "web.example.com")
	own := e.ingress(t, "own", "own.example.com")
	change := client.MergeFrom(own.DeepCopy())
	own.Annotations = map[string]string{"millrace.io/dedicated-vip": "true"}
	must(t, e.client.Patch(t.Context(), own, change))
	dedicated := types.NamespacedName{Namespace: namespace, Name: "ingress-own"}

	pod, other := e.pod(t, shared, "proxy-1"), e.pod(t, dedicated, "proxy-2")
	e.proxy(t, address, e.token(t, shared, infrastructure.Audience, pod)).receives(t, leadsTo("web", "198.18.0.1"))
	update := e.proxy(t, address, e.token(t, dedicated, infrastructure.Audience, other)).receives(t, leadsTo("own", "198.18.0.1"))
	if leadsTo("web", "198.18.0.1")(update) == nil {
		t.Errorf("the proxy of one Ingress received resources of another: %q", slices.Sorted(maps.Keys(update)))
	}

	stranger := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: "stranger", Labels: pod.Labels,
		Annotations: map[string]string{infrastructure.AnnotationOwner: "IngressClass//millrace"},
	}}
	e.create(t, stranger)
	disguised := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "disguised", Labels: pod.Labels}, Spec: other.Spec}
	disguised.Spec.ServiceAccountName = "stranger"
	e.create(t, disguised)
	plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "plain"}, Spec: other.Spec}
	plain.Spec.ServiceAccountName = dedicated.Name
	e.create(t, plain)
	gone := e.pod(t, dedicated, "gone")
	ofGone := e.token(t, dedicated, infrastructure.Audience, gone)
	must(t, e.client.Delete(t.Context(), gone, client.GracePeriodSeconds(0)))

	for name, test := range map[string]struct{ token, why string }{
		"no valid token":            {"x", "the API server does not accept it"},
		"wrong audience":            {e.token(t, shared, "https://kubernetes.default.svc", pod), "for the audience"},
		"not bound to a pod":        {e.token(t, shared, infrastructure.Audience, nil), "it is not bound to a pod"},
		"unrelated service account": {e.token(t, client.ObjectKeyFromObject(stranger), infrastructure.Audience, disguised), "does not run proxies"},
		"pod of other proxies":      {e.token(t, dedicated, infrastructure.Audience, plain), "does not belong to Ingress/shop/own"},
		"deleted pod":               {ofGone, "the token is not accepted"},
	} {
		t.Run(name, func(t *testing.T) { e.proxy(t, address, test.token).isRefused(t, test.why) })
	}
}

func endpointsAlone(t *testing.T, e *environment) {
	address, _ := e.run(t, nil)
	e.ingress(t, "web", "web.example.com")
	p := e.proxy(t, address, e.token(t, shared, infrastructure.Audience, e.pod(t, shared, "proxy-1")))
	p.receives(t, leadsTo("web", "198.18.0.1"))
	for i := range 5 {
		endpoints := slice("web", "198.18.0.1", fmt.Sprintf("198.18.1.%d", i))
		began := time.Now()
		must(t, e.client.Patch(t.Context(), endpoints, client.RawPatch(types.MergePatchType,
			fmt.Appendf(nil, `{"endpoints":[{"addresses":["198.18.0.1"]},{"addresses":["198.18.1.%d"]}]}`, i))))
		p.receives(t, leadsTo("web", "198.18.0.1", fmt.Sprintf("198.18.1.%d", i)))
		t.Logf("new endpoints received after %s", time.Since(began))
	}
	must(t, e.client.Delete(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}))
	p.receives(t, func(update configuration) error {
		if leadsTo("web", "198.18.0.1", "198.18.1.4")(update) == nil {
			return fmt.Errorf("the endpoints were not removed")
		}
		return nil
	})
}

func twoReplicas(t *testing.T, e *environment) {
	first, stop := e.run(t, nil)
	ingress := e.ingress(t, "web", "web.example.com")
	token := e.token(t, shared, infrastructure.Audience, e.pod(t, shared, "proxy-1"))
	ofFirst := e.proxy(t, first, token).receives(t, leadsTo("web", "198.18.0.1"))
	second, _ := e.run(t, func(c *controller.Config) { c.ControllerAddress = first })
	ofSecond := e.proxy(t, second, token).receives(t, leadsTo("web", "198.18.0.1"))
	secret := &corev1.Secret{}
	must(t, e.client.Get(t.Context(), types.NamespacedName{Namespace: systemNamespace, Name: "millrace-gateway"}, secret))
	values := ofFirst["secret"].GetSharedSecret().GetValues()
	if len(values) == 0 || !slices.EqualFunc(values, ofSecond["secret"].GetSharedSecret().GetValues(), bytes.Equal) {
		t.Errorf("the replicas have different derived secrets (%d and %d)", len(values), len(ofSecond["secret"].GetSharedSecret().GetValues()))
	}
	for key, value := range secret.Data {
		if slices.ContainsFunc(values, func(v []byte) bool { return bytes.Equal(v, value) }) {
			t.Errorf("proxies receive %s of the Secret instead of derived secrets", key)
		}
	}
	stop()
	e.assign(t, shared, "203.0.113.10")
	e.served(t, ingress, "203.0.113.10 80")
}

// line is a connection to the API server that can be cut.
type line struct {
	mu    sync.Mutex
	isCut bool
	conns []net.Conn
}

func (l *line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.isCut {
		conn.Close()
		return nil, errors.New("connection interrupted by the test")
	}
	l.conns = append(l.conns, conn)
	return conn, err
}

func (l *line) cut(isCut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut = isCut; isCut {
		for _, conn := range l.conns {
			if conn != nil {
				conn.Close()
			}
		}
		l.conns = nil
	}
}

// cutOff checks that a replica without the API server is not ready and disconnects its proxies.
func cutOff(t *testing.T, e *environment) {
	first, _ := e.run(t, nil)
	e.ingress(t, "web", "web.example.com")
	token := e.token(t, shared, infrastructure.Audience, e.pod(t, shared, "proxy-1"))
	e.proxy(t, first, token).receives(t, leadsTo("web", "198.18.0.1"))
	proxy, probe := &line{}, freeAddress(t)
	second, _ := e.run(t, func(c *controller.Config) {
		c.REST.Dial, c.APILossAfter, c.ControllerAddress, c.ProbeAddress = proxy.dial, time.Second, first, probe
	})
	ready := func(want int) {
		t.Helper()
		eventually(t, func(ctx context.Context) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+probe+"/readyz", nil)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			if response.StatusCode != want {
				return fmt.Errorf("readyz returns %s, want %d", response.Status, want)
			}
			return nil
		})
	}
	ready(http.StatusOK)
	p := e.proxy(t, second, token)
	p.receives(t, leadsTo("web", "198.18.0.1"))
	proxy.cut(true)
	ready(http.StatusInternalServerError)
	eventually(t, func(context.Context) error {
		if !strings.Contains(p.logs.String(), "cannot reach the API server") {
			return fmt.Errorf("the proxy was not moved: %s", p.logs)
		}
		return nil
	})
	proxy.cut(false)
	ready(http.StatusOK)
	must(t, e.client.Update(t.Context(), slice("web", "198.18.0.2")))
	p.receives(t, leadsTo("web", "198.18.0.2"))
}

// hungWatches freezes a replica's connections, which HTTP/2 pings or the read timeout must detect.
func hungWatches(t *testing.T, e *environment) {
	e.ingress(t, "web", "web.example.com")
	for i, protocol := range []string{"h2", "http/1.1"} {
		t.Run(protocol, func(t *testing.T) {
			// Defaults of client-go are 30 and 15.
			t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "3")
			t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "2")
			proxy := blackhole.New(t, strings.TrimPrefix(e.server.Admin().Host, "https://"))
			at, stop := e.run(t, func(c *controller.Config) {
				c.REST.NextProtos = []string{protocol}
				c.REST.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, network, proxy.Address)
				}
				if protocol == "http/1.1" {
					c.APISilenceAfter = 5 * time.Second
				}
			})
			defer stop()
			account := shared
			p := e.proxy(t, at, e.token(t, account, infrastructure.Audience, e.pod(t, account, fmt.Sprintf("proxy-%d", i))))
			p.receives(t, leadsTo("web", fmt.Sprintf("198.18.0.%d", 1+i)))
			if proxy.Drop() == 0 {
				t.Fatal("no connection to interrupt")
			}
			must(t, e.client.Update(t.Context(), slice("web", fmt.Sprintf("198.18.0.%d", 2+i))))
			p.receives(t, leadsTo("web", fmt.Sprintf("198.18.0.%d", 2+i)))
		})
	}
}

// refusals checks that a rejection sent to a follower is an event and a metric until it is accepted.
func refusals(t *testing.T, e *environment) {
	first, _ := e.run(t, nil)
	e.ingress(t, "web", "web.example.com")
	token := e.token(t, shared, infrastructure.Audience, e.pod(t, shared, "proxy-1"))
	e.proxy(t, first, token).receives(t, leadsTo("web", "198.18.0.1"))
	second, _ := e.run(t, func(c *controller.Config) { c.ControllerAddress = first })
	p := e.proxy(t, second, e.token(t, shared, infrastructure.Audience, e.pod(t, shared, "proxy-2")))
	p.receives(t, leadsTo("web", "198.18.0.1"))
	why := "port 8080 is taken"
	p.refuses.Store(&why)
	must(t, e.client.Update(t.Context(), slice("web", "198.18.0.2")))
	eventually(t, func(ctx context.Context) error {
		list := &eventsv1.EventList{}
		if err := e.client.List(ctx, list); err != nil {
			return err
		}
		for _, event := range list.Items {
			if event.Reason == "ConfigurationRejected" && event.Regarding.Kind == "IngressClass" && strings.Contains(event.Note, why) {
				return nil
			}
		}
		return fmt.Errorf("none of %d events reports the rejection", len(list.Items))
	})
	families, err := metrics.Registry.Gather()
	must(t, err)
	if !slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "millrace_gateway_rejecting_proxies" }) {
		t.Error("the metric of rejecting proxies is missing")
	}
	noWritesAtRest(t, e)
	p.refuses.Store(nil)
	must(t, e.client.Update(t.Context(), slice("web", "198.18.0.3")))
	p.receives(t, leadsTo("web", "198.18.0.3"))
	eventually(t, func(ctx context.Context) error {
		deployment := &appsv1.Deployment{}
		if err := e.client.Get(ctx, shared, deployment); err != nil {
			return err
		}
		if text := deployment.Annotations["millrace.io/rejected-resources"]; text != "" {
			return fmt.Errorf("the Deployment still has the annotation %s", text)
		}
		return nil
	})
}

func freeAddress(t *testing.T) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer free.Close()
	return free.Addr().String()
}

func objectsOfOthers(t *testing.T, e *environment) {
	taken := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: shared.Namespace, Name: shared.Name}, Data: map[string]string{"a": "b"}}
	e.create(t, taken)
	_, stop := e.run(t, nil)
	e.ingress(t, "web", "web.example.com")
	e.await(t, &appsv1.Deployment{}, shared)
	found := &corev1.ConfigMap{}
	must(t, e.client.Get(t.Context(), shared, found))
	if len(found.Data) != 1 || found.Data["a"] != "b" {
		t.Errorf("a foreign ConfigMap was overwritten: %v", found.Data)
	}
	must(t, e.client.Delete(t.Context(), taken))
	eventually(t, func(ctx context.Context) error {
		if err := e.client.Get(ctx, shared, found); err != nil {
			return err
		}
		if found.Data[infrastructure.CAKey] == "" {
			return fmt.Errorf("the CA is missing in the ConfigMap: %v", found.Data)
		}
		return nil
	})
	stop()
}

// problemsAreEvents includes problems with the same reason, and one that appears later.
func problemsAreEvents(t *testing.T, e *environment) {
	e.run(t, nil)
	ingress := e.ingress(t, "web", "web.example.com")
	before := client.MergeFrom(ingress.DeepCopy())
	ingress.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"web.example.com"}, SecretName: "missing"}}
	ingress.Spec.DefaultBackend = &networkingv1.IngressBackend{
		Service: &networkingv1.IngressServiceBackend{Name: "nowhere", Port: networkingv1.ServiceBackendPort{Number: 80}},
	}
	must(t, e.client.Patch(t.Context(), ingress, before))
	e.warnedOf(t, ingress, model.ReasonNotFound, "there is no Secret shop/missing")
	e.warnedOf(t, ingress, model.ReasonNotFound, "there is no Service shop/nowhere")
	must(t, e.client.Delete(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}))
	e.warnedOf(t, ingress, model.ReasonNotFound, "there is no Service shop/web")
}
