//go:build e2e && long

package controller_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/route/routetest"
	"github.com/millrace-lb/millrace/test/lab/controlplane"
)

const (
	// tenant has all permissions in the namespace flood only.
	tenant, floodNamespace = "tenant", "flood"
	floodRoutes            = 500
	floodIngresses         = 100
	floodSecrets           = 50
	// floodRate is the number of attempted changes per second.
	floodRate = 1000
	floodFor  = 20 * time.Second
)

// Maximum delays during the flood, while API server, etcd, tenant and controller share the machine.
const (
	longestToProxy  = 5 * time.Second
	longestToStatus = 5 * time.Second
	longestToEvent  = 30 * time.Second
)

// TestFlood changes a tenant's objects a thousand times per second, and measures the delay of another
// tenant's changes and the controller's resources.
func TestFlood(t *testing.T) {
	e := newEnvironment(t, tenant)
	e.gatewayAPI(t)
	e.class(t)
	e.client.MakeNamespaces(t, floodNamespace)
	e.permit(t)
	address, program := e.runProgram(t)
	gateway := e.gateway(t, "HTTP/80")
	all := gatewayv1.NamespacesFromAll
	before := client.MergeFrom(gateway.DeepCopy())
	gateway.Spec.Listeners[0].AllowedRoutes = &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &all}}
	must(t, e.client.Patch(t.Context(), gateway, before))
	web, ingress := redirected("web", "start.example.com"), e.ingress(t, "web", "web.example.com")
	e.create(t, web)
	v := &bystander{environment: e, route: web, ingress: ingress}
	v.proxy = e.proxy(t, address, e.token(t, edge, infrastructure.Audience, e.pod(t, edge, "edge-1")))

	v.measure(t, "before", 5)
	f := e.flood(t)
	v.measure(t, "with 650 objects of the other, at rest", 5)
	wrote, cpu, began := e.statusWrites(t), program.cpu(t), time.Now()
	ctx, end := context.WithTimeout(t.Context(), floodFor)
	defer end()
	done := make(chan struct{})
	go func() { defer close(done); f.run(ctx) }()
	worst := v.measure(t, "under the flood", 15)
	end()
	<-done
	took := time.Since(began)
	used := program.cpu(t) - cpu
	t.Logf("the tenant applied %d changes within %s (%.0f/s), %d failed", f.made.Load(), took.Round(time.Millisecond),
		float64(f.made.Load())/took.Seconds(), f.failed.Load())
	t.Logf("the controller used %.2f CPUs and %d MiB", used.Seconds()/took.Seconds(), program.memory(t)>>20)
	for resource, count := range e.statusWrites(t) {
		t.Logf("status writes of %s: %d (%.0f/s)", resource, count-wrote[resource], float64(count-wrote[resource])/took.Seconds())
	}
	t.Logf("other writes: %v", e.otherWrites(t))
	if worst.proxy > longestToProxy || worst.status > longestToStatus || worst.event > longestToEvent {
		t.Errorf("a change of another tenant reached the proxy after %s, the status after %s, the event after %s; limits %s, %s, %s",
			worst.proxy, worst.status, worst.event, longestToProxy, longestToStatus, longestToEvent)
	}
	v.measure(t, "after", 3)
}

func (e *environment) permit(t *testing.T) {
	t.Helper()
	e.create(t, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: floodNamespace, Name: tenant},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}},
	})
	e.create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: floodNamespace, Name: tenant},
		Subjects:   []rbacv1.Subject{{Kind: "User", Name: tenant}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: tenant},
	})
}

// otherWrites counts the controller's writes, except for statuses, by resource and code.
func (e *environment) otherWrites(t *testing.T) map[string]int {
	t.Helper()
	all, err := e.server.Writes()
	must(t, err)
	writes := map[string]int{}
	for _, write := range all {
		if write.User == gatewayUser && (write.Subresource != "status" || write.Code != 200) {
			writes[fmt.Sprintf("%s/%s: %d", write.Resource, write.Subresource, write.Code)]++
		}
	}
	return writes
}

type program struct{ pid int }

func (e *environment) runProgram(t *testing.T, arguments ...string) (address string, running *program) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "gateway")
	out, err := exec.Command("go", "build", "-o", binary, "../../cmd/gateway").CombinedOutput()
	if err != nil {
		t.Fatalf("build the controller: %v: %s", err, out)
	}
	kubeconfig, err := e.server.WriteKubeconfig(gatewayUser)
	must(t, err)
	address = fmt.Sprintf("127.0.0.1:%d", controlplane.FreePort(t))
	logs := &controlplane.Log{}
	command := exec.Command(binary, append([]string{
		"--kubeconfig=" + kubeconfig, "--leader-elect", "--xds-bind-address=" + address, "--controller-address=" + address,
		"--proxy-image=example.com/lbproxy:v1", "--metrics-bind-address=0", "--health-probe-bind-address=0",
	}, arguments...)...)
	command.Stderr = logs
	must(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		if err := command.Wait(); err != nil || t.Failed() {
			t.Logf("the controller exited with %v, log:\n%s", err, logs)
		}
	})
	return address, &program{pid: command.Process.Pid}
}

func (p *program) cpu(t *testing.T) time.Duration {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	must(t, err)
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+2:]))
	user, err := strconv.ParseInt(fields[11], 10, 64)
	must(t, err)
	system, err := strconv.ParseInt(fields[12], 10, 64)
	must(t, err)
	return time.Duration(user+system) * 10 * time.Millisecond
}

func (p *program) memory(t *testing.T) int64 {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.pid))
	must(t, err)
	pages, err := strconv.ParseInt(strings.Fields(string(content))[1], 10, 64)
	must(t, err)
	return pages * int64(os.Getpagesize())
}

type bystander struct {
	*environment
	route   *gatewayv1.HTTPRoute
	ingress *networkingv1.Ingress
	proxy   *proxy
	changes int
}

type waited struct{ proxy, status, event time.Duration }

// measure changes the route and the Ingress several times and waits until each change has arrived.
func (b *bystander) measure(t *testing.T, when string, times int) (most waited) {
	t.Helper()
	var all [3][]time.Duration
	for range times {
		b.changes++
		host := fmt.Sprintf("to-%d.example.com", b.changes)
		b.edit(t, b.route, func(r *gatewayv1.HTTPRoute) {
			target := gatewayv1.PreciseHostname(host)
			r.Spec.Rules[0].Filters[0].RequestRedirect.Hostname = &target
		})
		missing := fmt.Sprintf("missing-%d", b.changes)
		must(t, b.client.Patch(t.Context(), b.ingress, client.RawPatch(types.MergePatchType, fmt.Appendf(nil,
			`{"spec":{"defaultBackend":{"service":{"name":%q,"port":{"number":80}}}}}`, missing))))
		began := time.Now()
		var wait sync.WaitGroup
		for i, arrived := range []func(){
			func() { b.proxy.receives(t, redirectsTo(host)) },
			func() { b.awaitStatus(t) },
			func() { b.awaitEvent(t, missing) },
		} {
			wait.Go(func() { arrived(); all[i] = append(all[i], time.Since(began)) })
		}
		wait.Wait()
	}
	for i, name := range []string{"proxy", "status", "event"} {
		slices.Sort(all[i])
		t.Logf("%s: median time of a change to %s: %s, maximum %s", when, name,
			all[i][len(all[i])/2].Round(time.Millisecond), all[i][len(all[i])-1].Round(time.Millisecond))
	}
	return waited{all[0][times-1], all[1][times-1], all[2][times-1]}
}

func redirectsTo(host string) func(configuration) error {
	return func(has configuration) error {
		for _, r := range has {
			for _, rule := range r.GetRouteGroup().GetRules() {
				for _, filter := range rule.GetFilters() {
					if filter.GetRedirect().GetHostname() == host {
						return nil
					}
				}
			}
		}
		return fmt.Errorf("no rule redirects to %s", host)
	}
}

func (b *bystander) awaitStatus(t *testing.T) {
	t.Helper()
	controlplane.Eventually(t, time.Minute, func(ctx context.Context) error {
		found := &gatewayv1.HTTPRoute{}
		if err := b.client.Get(ctx, client.ObjectKeyFromObject(b.route), found); err != nil {
			return err
		}
		for _, parent := range found.Status.Parents {
			if parent.Conditions[0].ObservedGeneration == b.route.Generation {
				return nil
			}
		}
		return fmt.Errorf("the status is %+v", found.Status)
	})
}

func (b *bystander) awaitEvent(t *testing.T, text string) {
	t.Helper()
	controlplane.Eventually(t, time.Minute, func(ctx context.Context) error {
		events := &eventsv1.EventList{}
		if err := b.client.List(ctx, events, client.InNamespace(namespace)); err != nil {
			return err
		}
		for i := range events.Items {
			if strings.Contains(events.Items[i].Note, text) {
				return nil
			}
		}
		return fmt.Errorf("none of %d events reports %s", len(events.Items), text)
	})
}

type flood struct {
	client       client.Client
	secrets      [2]map[string][]byte
	made, failed atomic.Int64
}

func (e *environment) flood(t *testing.T) *flood {
	t.Helper()
	f := &flood{}
	for i := range f.secrets {
		chain, key, err := routetest.Certificate("*.flood.example.com")
		must(t, err)
		f.secrets[i] = map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}
	}
	made, err := client.New(e.server.User(tenant), client.Options{Scheme: e.client.Scheme()})
	must(t, err)
	f.client = made
	class := "millrace"
	for i := range floodSecrets {
		must(t, made.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: floodNamespace, Name: fmt.Sprintf("a-%d", i)},
			Type:       corev1.SecretTypeTLS, Data: f.secrets[0],
		}))
	}
	for i := range floodIngresses {
		ingress := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: floodNamespace, Name: fmt.Sprintf("a-%d", i)}}
		ingress.Spec.IngressClassName = &class
		ingress.Spec.TLS = []networkingv1.IngressTLS{{
			Hosts: []string{fmt.Sprintf("i%d.flood.example.com", i)}, SecretName: fmt.Sprintf("a-%d", i%floodSecrets),
		}}
		ingress.Spec.DefaultBackend = &networkingv1.IngressBackend{
			Service: &networkingv1.IngressServiceBackend{Name: "nowhere", Port: networkingv1.ServiceBackendPort{Number: 80}},
		}
		must(t, made.Create(t.Context(), ingress))
	}
	shop := gatewayv1.Namespace(namespace)
	for i := range floodRoutes {
		route := redirected(fmt.Sprintf("a-%d", i), "start.example.com")
		route.Namespace = floodNamespace
		route.Spec.ParentRefs[0].Namespace = &shop
		route.Spec.Hostnames = []gatewayv1.Hostname{gatewayv1.Hostname(fmt.Sprintf("r%d.flood.example.com", i))}
		must(t, made.Create(t.Context(), route))
	}
	return f
}

func (f *flood) run(ctx context.Context) {
	var wait sync.WaitGroup
	work := make(chan int64, floodRate)
	for range 64 {
		wait.Go(func() {
			for i := range work {
				err := f.change(ctx, i)
				switch {
				case ctx.Err() != nil:
				case err != nil:
					f.failed.Add(1)
				default:
					f.made.Add(1)
				}
			}
		})
	}
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for i := int64(0); ; {
		select {
		case <-ctx.Done():
			close(work)
			wait.Wait()
			return
		case <-ticker.C:
		}
		for range floodRate / 100 {
			select {
			case work <- i:
				i++
			default:
			}
		}
	}
}

// change makes one change: six of ten to routes, three to Ingresses, one to certificates.
func (f *flood) change(ctx context.Context, i int64) error {
	at := metav1.ObjectMeta{Namespace: floodNamespace}
	patch := func(object client.Object, format string, arguments ...any) error {
		return f.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, arguments...)))
	}
	switch kind := i % 10; {
	case kind < 6:
		at.Name = fmt.Sprintf("a-%d", rand.IntN(floodRoutes))
		return patch(&gatewayv1.HTTPRoute{ObjectMeta: at},
			`{"spec":{"rules":[{"filters":[{"type":"RequestRedirect","requestRedirect":{"hostname":"to-%d.flood.example.com"}}]}]}}`, i)
	case kind < 9:
		at.Name = fmt.Sprintf("a-%d", rand.IntN(floodIngresses))
		return patch(&networkingv1.Ingress{ObjectMeta: at},
			`{"spec":{"defaultBackend":{"service":{"name":"nowhere-%d","port":{"number":80}}}}}`, i)
	}
	at.Name = fmt.Sprintf("a-%d", rand.IntN(floodSecrets))
	secret := &corev1.Secret{ObjectMeta: at, Type: corev1.SecretTypeTLS, Data: f.secrets[i/10%2]}
	return f.client.Update(ctx, secret)
}
