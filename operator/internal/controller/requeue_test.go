// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"pgregory.net/rapid"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

type queued struct {
	*cluster
	queue queue
	vips  vipEvents
	// known contains the VIPs of the last delivered events; looks counts passes.
	known      map[string]millracev1beta1.VIP
	pending    []func()
	looks      int
	namespaces map[string]string
}

func newQueued(t *testing.T, objects ...client.Object) *queued {
	t.Helper()
	w := &queued{
		cluster: newCluster(t, objects...), known: map[string]millracev1beta1.VIP{}, namespaces: map[string]string{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]()),
	}
	t.Cleanup(w.queue.ShutDown)
	r := w.reconciler
	w.vips = vipEvents{vips: r.vips, waiting: r.waiting, pools: r.pools}
	namespaces := &corev1.NamespaceList{}
	if err := w.api.List(t.Context(), namespaces); err != nil {
		t.Fatal(err)
	}
	for i := range namespaces.Items {
		namespaceEvents(r.waiting).Create(t.Context(), event.CreateEvent{Object: &namespaces.Items[i]}, w.queue)
	}
	r.later = func(service types.NamespacedName, _ time.Duration) {
		w.queue.Add(ctrl.Request{NamespacedName: service})
	}
	return w
}

func (w *queued) create(service *corev1.Service) error {
	service.UID = types.UID(fmt.Sprintf("%s %d", service.Name, w.writes))
	w.namespaces[service.Name] = service.Namespace
	if err := w.api.Create(w.t.Context(), service); err != nil {
		return err
	}
	w.reconciler.addWaiting(service, false)
	w.queue.Add(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(service)})
	return nil
}

func (w *queued) delete(name string) error {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespaces[name], Name: name}}
	w.queue.Add(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(service)})
	return client.IgnoreNotFound(w.api.Delete(w.t.Context(), service))
}

func (w *queued) happen() error {
	list := &millracev1beta1.VIPList{}
	if err := w.api.List(w.t.Context(), list); err != nil {
		return err
	}
	gone := w.known
	w.known = map[string]millracev1beta1.VIP{}
	add := func(event func()) { w.pending = append(w.pending, event) }
	for _, vip := range list.Items {
		w.known[vip.Name] = vip
		before, known := gone[vip.Name]
		delete(gone, vip.Name)
		switch {
		case !known:
			add(func() {
				w.vips.Create(w.t.Context(), event.TypedCreateEvent[*millracev1beta1.VIP]{Object: &vip}, w.queue)
			})
		case before.ResourceVersion != vip.ResourceVersion:
			add(func() {
				w.vips.Update(w.t.Context(), event.TypedUpdateEvent[*millracev1beta1.VIP]{ObjectOld: &before, ObjectNew: &vip}, w.queue)
			})
		}
	}
	for _, vip := range gone {
		add(func() {
			w.vips.Delete(w.t.Context(), event.TypedDeleteEvent[*millracev1beta1.VIP]{Object: &vip}, w.queue)
		})
	}
	return nil
}

func (w *queued) show() {
	for _, deliver := range w.pending {
		deliver()
	}
	w.pending = nil
}

func (w *queued) look() error {
	request, _ := w.queue.Get()
	defer w.queue.Done(request)
	w.looks++
	_, err := w.reconciler.Reconcile(w.t.Context(), request)
	for len(w.events.Events) > 0 {
		<-w.events.Events
	}
	return errors.Join(err, w.happen())
}

func (w *queued) rest() error {
	for {
		w.show()
		if w.queue.Len() == 0 {
			return nil
		}
		for w.queue.Len() > 0 {
			if err := w.look(); err != nil {
				return err
			}
		}
	}
}

// With thousands waiting, a freed address requeues only the first Service, then the next.
func TestFreedAddressRequeuesOne(t *testing.T) {
	const waiting = 100
	six := poolWith("2001:db8::/128")
	six.Name = "six"
	w := newQueued(t, poolWith("203.0.113.0/31"), six)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"one", "two"} {
		must(w.create(ours(name, nil)))
	}
	must(w.create(ours("three", func(service *corev1.Service) { service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} })))
	must(w.rest())
	both := func(service *corev1.Service) {
		policy := corev1.IPFamilyPolicyRequireDualStack
		service.Spec.IPFamilyPolicy = &policy
		service.Spec.IPFamilies = append(service.Spec.IPFamilies, corev1.IPv6Protocol)
	}
	// The oldest Service waits for two addresses.
	must(w.create(ours("dual", both)))
	for i := range waiting {
		must(w.create(ours(fmt.Sprintf("web-%04d", i), nil)))
	}
	must(w.rest())
	for i, gone := range []string{"one", "two", "web-0000"} {
		w.looks = 0
		must(w.delete(gone))
		must(w.rest())
		next := fmt.Sprintf("web-%04d", i)
		if len(w.service(next).Status.LoadBalancer.Ingress) == 0 {
			t.Errorf("%s is the next in the queue, but has no address", next)
		}
		t.Logf("after the deletion of %s: %d reconciliations", gone, w.looks)
		if w.looks > 12 {
			t.Errorf("%d reconciliations after the deletion of %s, %d waiting", w.looks, gone, waiting)
		}
	}
}

func drawWaiting(t *rapid.T, name string) *corev1.Service {
	return ours(name, func(service *corev1.Service) {
		service.Namespace = rapid.SampledFrom([]string{"shop", "farm"}).Draw(t, "namespace")
		service.Annotations = map[string]string{}
		annotate := func(annotation string, values ...string) {
			if value := rapid.SampledFrom(append(values, "", "", "")).Draw(t, annotation); value != "" {
				service.Annotations[annotation] = value
			}
		}
		annotate(millracev1beta1.AnnotationAddresses, "203.0.113.0", "203.0.113.1", "203.0.113.0,203.0.113.9", "203.0.113.9,2001:db8::")
		annotate(millracev1beta1.AnnotationPool, "main", "other")
		annotate(millracev1beta1.AnnotationSharingKey, "dns", "dns", "web")
		service.Spec.Ports = nil
		for _, port := range rapid.SliceOfNDistinct(rapid.Int32Range(80, 82), 1, 2, rapid.ID).Draw(t, "ports") {
			service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Port: port, Protocol: corev1.ProtocolTCP})
		}
		families := rapid.SampledFrom([][]corev1.IPFamily{
			{corev1.IPv4Protocol}, {corev1.IPv4Protocol}, {corev1.IPv6Protocol}, {corev1.IPv4Protocol, corev1.IPv6Protocol},
		}).Draw(t, "families")
		policy := corev1.IPFamilyPolicySingleStack
		if len(families) > 1 {
			policy = rapid.SampledFrom([]corev1.IPFamilyPolicy{
				corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack,
			}).Draw(t, "policy")
		}
		service.Spec.IPFamilies, service.Spec.IPFamilyPolicy = families, &policy
		if rapid.IntRange(0, 9).Draw(t, "foreign") == 0 {
			service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
		}
	})
}

func drawRequeuePools(t *rapid.T) []client.Object {
	scope := rapid.SampledFrom([]millracev1beta1.SharingScope{millracev1beta1.ShareInNamespace, millracev1beta1.ShareInCluster})
	var pools []client.Object
	for _, name := range []string{"main", "other"} {
		pool := poolWith("203.0.113.0/31", "2001:db8::/128")
		if name == "other" {
			pool = poolWith("203.0.113.8/31", "2001:db8::8/127")
		}
		pool.Name, pool.UID, pool.Spec.SharingScope = name, types.UID(name), scope.Draw(t, "scope of "+name)
		if most := rapid.Int32Range(0, 3).Draw(t, "quota of "+name); most > 0 {
			pool.Spec.PerNamespace = &millracev1beta1.NamespaceQuota{Max: most}
		}
		if name == "other" {
			pool.Spec.AutoAssign = new(bool)
			*pool.Spec.AutoAssign = rapid.Bool().Draw(t, "autoAssign")
			if rapid.Bool().Draw(t, "selects") {
				pool.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "farm"}}
			}
		}
		pools = append(pools, pool)
	}
	return append(pools, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "farm", Labels: map[string]string{"kubernetes.io/metadata.name": "farm"},
	}})
}

// No wake-up is lost: once the queue is empty, a pass over all Services assigns nothing.
func TestRequeueOfFewEqualsAll(t *testing.T) {
	fewChecks(t, "20")
	rapid.Check(t, func(rt *rapid.T) {
		w := newQueued(t, drawRequeuePools(rt)...)
		must := func(err error) {
			if err != nil {
				rt.Fatal(err)
			}
		}
		var alive []string
		made := 0
		for range rapid.IntRange(4, 24).Draw(rt, "steps") {
			switch action := rapid.IntRange(0, 9).Draw(rt, "action"); {
			case action < 5 || len(alive) == 0:
				name := fmt.Sprintf("s%02d", made)
				made++
				alive = append(alive, name)
				must(w.create(drawWaiting(rt, name)))
			case action < 7:
				i := rapid.IntRange(0, len(alive)-1).Draw(rt, "gone")
				must(w.delete(alive[i]))
				alive = slices.Delete(alive, i, i+1)
			case action < 8:
				must(w.changeViews(rt))
			default:
				must(w.reserveOrFree(rapid.SampledFrom([]string{"203.0.113.0", "203.0.113.9", "2001:db8::"}).Draw(rt, "reserved")))
			}
			for range rapid.IntRange(0, 6).Draw(rt, "looks") {
				if w.queue.Len() > 0 {
					must(w.look())
				}
			}
			if rapid.Bool().Draw(rt, "shown") {
				w.show()
			}
		}
		must(w.rest())
		before := w.claims()
		for _, name := range alive {
			_, err := w.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: w.namespaces[name], Name: name}})
			must(err)
			if now := w.claims(); !maps.Equal(now, before) {
				rt.Fatalf("%s was not reconciled although it can gain an address: VIPs changed from %v to %v", name, before, now)
			}
		}
	})
}

// fewChecks limits rapid's checks, which take a third of a second each, unless the number is set.
func fewChecks(t *testing.T, number string) {
	checks := flag.Lookup("rapid.checks")
	if checks.Value.String() != checks.DefValue {
		return
	}
	t.Cleanup(func() { _ = checks.Value.Set(checks.DefValue) })
	if err := checks.Value.Set(number); err != nil {
		t.Fatal(err)
	}
}

func (w *queued) reserveOrFree(address string) error {
	vip := &millracev1beta1.VIP{ObjectMeta: metav1.ObjectMeta{Name: millracev1beta1.VIPName(netip.MustParseAddr(address))}}
	err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(vip), vip)
	switch {
	case err == nil && len(vip.Spec.Claims) == 0:
		return errors.Join(w.api.Delete(w.t.Context(), vip), w.happen())
	case err == nil:
		return nil
	}
	vip.Spec.Address = address
	return errors.Join(w.api.Create(w.t.Context(), vip), w.happen())
}

func (w *queued) claims() map[string]string {
	claims := map[string]string{}
	for _, vip := range w.cluster.vips() {
		claims[vip.Spec.Address] = claimants(vip.Spec.Claims)
	}
	return claims
}

// A change during a plan that has not seen it requeues the Service.
func TestChangeDuringAPlan(t *testing.T) {
	l := newVIPCache()
	waiting := newWaitingServices(l)
	service := ours("web", nil)
	key := client.ObjectKeyFromObject(service)
	waiting.begin(service, time.Now())
	before := waiting.present()
	planned := waiting.plan(key, 0)
	l.changes.Add(1)
	waiting.change(newVIPChange(address, nil, nil))
	waiting.recordPlan(key, planned)
	waiting.recordUnmet(key, unmetRequest{wants: []ipam.Want{{Pool: "main", Family: ipam.IPv4}}})
	waiting.recordReconcile(key, before)
	isUsed := func(netip.Addr) bool { return false }
	if woken := waiting.takeDue(isUsed); !slices.Equal(woken, []types.NamespacedName{key}) {
		t.Errorf("takeDue = %v, want %s", woken, key)
	}
	waiting.recordPlan(key, waiting.plan(key, 0))
	waiting.recordReconcile(key, waiting.present())
	if woken := waiting.takeDue(isUsed); len(woken) > 0 {
		t.Errorf("takeDue = %v without any change", woken)
	}
}

// Each change that may help a Service requeues it, and no other change does.
func TestChangesThatMayHelp(t *testing.T) {
	claims := func(namespace, key string) []millracev1beta1.VIPClaim {
		return []millracev1beta1.VIPClaim{{Namespace: namespace, Name: "other", SharingKey: key}}
	}
	other := netip.MustParseAddr("203.0.113.77")
	full := ipam.Want{Pool: "main", Family: ipam.IPv4}
	over := ipam.Want{Pool: "main", Family: ipam.IPv4, OverQuota: true}
	for name, test := range map[string]struct {
		waits  waiter
		change vipChange
		want   bool
	}{
		"any address of a pool":      {waiter{unmet: unmetRequest{wants: []ipam.Want{full}}}, newVIPChange(other, claims("shop", ""), nil), false},
		"requested address":          {waiter{unmet: unmetRequest{wants: []ipam.Want{{Address: other}}}}, newVIPChange(other, nil, nil), true},
		"other address":              {waiter{unmet: unmetRequest{wants: []ipam.Want{{Address: address}}}}, newVIPChange(other, claims("shop", ""), nil), false},
		"quota of the Service":       {waiter{unmet: unmetRequest{wants: []ipam.Want{full, over}}}, newVIPChange(other, claims("shop", ""), nil), true},
		"quota of another namespace": {waiter{unmet: unmetRequest{wants: []ipam.Want{over}}}, newVIPChange(other, claims("farm", ""), claims("farm", "")), false},
		"sharing key":                {waiter{unmet: unmetRequest{sharingKey: "dns"}}, newVIPChange(other, claims("farm", ""), claims("farm", "dns")), true},
		"previous sharing key":       {waiter{unmet: unmetRequest{sharingKey: "dns"}}, newVIPChange(other, claims("farm", "dns"), nil), true},
		"other sharing key":          {waiter{unmet: unmetRequest{sharingKey: "dns"}}, newVIPChange(other, claims("farm", "web"), nil), false},
		"quota of a sharing Service": {waiter{unmet: unmetRequest{sharingKey: "dns"}}, newVIPChange(other, claims("shop", ""), nil), true},
		"no sharing key":             {waiter{unmet: unmetRequest{wants: []ipam.Want{full}}}, newVIPChange(other, claims("farm", ""), nil), false},
		"anything":                   {waiter{unmet: unmetRequest{isOpen: true}}, newVIPChange(other, nil, nil), true},
		"plan in progress":           {waiter{isPlanned: true}, newVIPChange(other, nil, nil), true},
		"no unmet request":           {waiter{}, newVIPChange(other, claims("shop", ""), nil), false},
	} {
		test.waits.name, test.waits.isKnown = types.NamespacedName{Namespace: "shop", Name: "web"}, true
		if got := test.change.mayAffect(&test.waits); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
	dual := &ipam.Request{Families: []ipam.Family{ipam.IPv4, ipam.IPv6}}
	if !unmetRequestOf(&corev1.Service{}, dual, &serviceResult{plan: ipam.Plan{Wants: []ipam.Want{over}}}).isOpen {
		t.Error("isOpen = false although another pool can provide the first of two addresses")
	}
	if unmetRequestOf(&corev1.Service{}, &ipam.Request{Families: dual.Families[:1]}, &serviceResult{plan: ipam.Plan{Wants: []ipam.Want{over}}}).isOpen {
		t.Error("isOpen = true although a quota denies the only address")
	}
	if !unmetRequestOf(&corev1.Service{}, dual, &serviceResult{isForeign: true}).isOpen {
		t.Error("isOpen = false for a Service with a foreign address")
	}
}
