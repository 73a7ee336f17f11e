// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/validation"
)

type cluster struct {
	t          *testing.T
	api        client.Client
	reconciler *serviceReconciler
	events     *events.FakeRecorder
	counting   sync.Mutex
	writes     int
}

var testScheme = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, millracev1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
})

func newCluster(t *testing.T, objects ...client.Object) *cluster {
	t.Helper()
	scheme := testScheme()
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	stored := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&corev1.Service{}).WithReturnManagedFields().Build()
	c := &cluster{t: t, api: stored, events: events.NewFakeRecorder(1000)}
	counting := interceptor.NewClient(stored, interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, object client.Object, options ...client.CreateOption) error {
			c.count()
			return api.Create(ctx, object, append(options, client.FieldOwner(control.FieldOwner))...)
		},
		Update: func(ctx context.Context, api client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			c.count()
			return api.Update(ctx, object, options...)
		},
		Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			c.count()
			return api.Patch(ctx, object, patch, options...)
		},
		SubResourcePatch: func(ctx context.Context, api client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			c.count()
			return api.SubResource(sub).Patch(ctx, object, patch, options...)
		},
	})
	l := newVIPCache()
	c.reconciler = &serviceReconciler{
		client: counting, live: stored, recorder: c.events, vips: l, waiting: newWaitingServices(l), later: func(types.NamespacedName, time.Duration) {},
		zones: newZoneTracker(l), links: newLinkTracker(l), overCapacity: newCapacityTracker(), duplicates: newDuplicateTracker(nil), written: writtenVersions{}, had: heldAddresses{}, conflicts: statusConflicts{}, failedWrites: map[types.NamespacedName][]netip.Addr{}, pools: newPoolIndex(),
		now: time.Now, announcers: newAnnouncers(l), announcements: newAnnouncements(),
	}
	// No reconciler of pools admits added addresses here.
	c.reconciler.pools.hasAdded = true
	c.reconciler.announcers.change("node", func(node *announcer) {
		node.exists, node.sessions = true, map[string]validation.Families{"router": validation.BothFamilies}
	})
	return c
}

func (c *cluster) count() {
	c.counting.Lock()
	defer c.counting.Unlock()
	c.writes++
}

// reconcile reconciles a Service twice; the second pass must not write.
func (c *cluster) reconcile(name string) {
	c.t.Helper()
	request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "shop", Name: name}}
	for _, again := range []bool{false, true} {
		before := c.writes
		if _, err := c.reconciler.Reconcile(c.t.Context(), request); err != nil {
			c.t.Fatal(err)
		}
		if again && c.writes > before {
			c.t.Errorf("%d writes without a change", c.writes-before)
		}
	}
}

func (c *cluster) service(name string) *corev1.Service {
	c.t.Helper()
	service := &corev1.Service{}
	if err := c.api.Get(c.t.Context(), client.ObjectKey{Namespace: "shop", Name: name}, service); err != nil {
		c.t.Fatal(err)
	}
	return service
}

func (c *cluster) change(name string, change func(*corev1.Service)) {
	c.t.Helper()
	service := c.service(name)
	change(service)
	if err := c.api.Update(c.t.Context(), service); err != nil {
		c.t.Fatal(err)
	}
	c.reconcile(name)
}

// expect compares a condition, and the events since the last call.
func (c *cluster) expect(name, condition, want string, events ...string) {
	c.t.Helper()
	got := "none"
	if found := meta.FindStatusCondition(c.service(name).Status.Conditions, condition); found != nil {
		got = fmt.Sprintf("%s %s %s", found.Status, found.Reason, found.Message)
	}
	if got != want {
		c.t.Errorf("%s of %s is %q, want %q", condition, name, got, want)
	}
	var recorded []string
	for len(c.events.Events) > 0 {
		recorded = append(recorded, <-c.events.Events)
	}
	if !slices.Equal(recorded, events) {
		c.t.Errorf("events = %q, want %q", recorded, events)
	}
}

func ours(name string, change func(*corev1.Service)) *corev1.Service {
	class := millracev1beta1.Class
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "1"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(80)}},
		},
	}
	if change != nil {
		change(service)
	}
	return service
}

func advertiseAll() *millracev1beta1.VIPAdvertisement {
	return &millracev1beta1.VIPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: "all"}}
}

func poolOf(policy millracev1beta1.ReclaimPolicy) *millracev1beta1.VIPPool {
	return &millracev1beta1.VIPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "main"},
		Spec:       millracev1beta1.VIPPoolSpec{Addresses: []string{"203.0.113.0/30"}, ReclaimPolicy: policy},
	}
}

func TestServiceIsReleased(t *testing.T) {
	earlier := func(service *corev1.Service) {
		service.Finalizers = []string{"example.com/other", millracev1beta1.SharedFinalizer}
	}
	c := newCluster(t, poolOf(millracev1beta1.ReclaimRetain), ours("web", earlier))
	c.reconcile("web")
	want := []string{"example.com/other", millracev1beta1.SharedFinalizer, millracev1beta1.Finalizer}
	if got := c.service("web").Finalizers; !slices.Equal(got, want) {
		t.Errorf("finalizers = %v", got)
	}
	c.change("web", func(service *corev1.Service) {
		service.Spec.Type, service.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
	})
	service := c.service("web")
	if !slices.Equal(service.Finalizers, []string{"example.com/other"}) || len(service.Status.Conditions)+len(service.Status.LoadBalancer.Ingress) > 0 {
		t.Errorf("remaining: %v and %+v", service.Finalizers, service.Status)
	}
	vip := &millracev1beta1.VIP{}
	if err := c.api.Get(t.Context(), client.ObjectKey{Name: "203.0.113.0"}, vip); err != nil {
		t.Fatal(err)
	}
	if claims := vip.Spec.Claims; len(claims) != 1 || claims[0].Name != "web" || claims[0].UID != "" {
		t.Errorf("claims of the reserved VIP = %+v", claims)
	}
	if err := c.api.Create(t.Context(), ours("other", func(service *corev1.Service) {
		service.UID, service.Annotations = "2", map[string]string{millracev1beta1.AnnotationAddresses: "203.0.113.0"}
	})); err != nil {
		t.Fatal(err)
	}
	c.reconcile("other")
	if condition := c.service("other").Status.Conditions[0]; condition.Reason != millracev1beta1.ReasonAddressInUse ||
		!strings.Contains(condition.Message, "is reserved for Service shop/web") {
		t.Errorf("condition of another Service = %+v", condition)
	}
	c.change("web", func(service *corev1.Service) {
		class := millracev1beta1.Class
		service.Spec.Type, service.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, &class
	})
	if ingress := c.service("web").Status.LoadBalancer.Ingress; len(ingress) != 1 || ingress[0].IP != "203.0.113.0" {
		t.Errorf("addresses of the recreated Service = %+v", ingress)
	}
}

func ending(api client.Client, writes int) client.Client {
	count := func() error {
		if writes--; writes < 0 {
			return apierrors.NewInternalError(context.Canceled)
		}
		return nil
	}
	return interceptor.NewClient(api.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, object client.Object, options ...client.CreateOption) error {
			if err := count(); err != nil {
				return err
			}
			return api.Create(ctx, object, append(options, client.FieldOwner(control.FieldOwner))...)
		},
		Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if err := count(); err != nil {
				return err
			}
			return api.Patch(ctx, object, patch, options...)
		},
		Delete: func(ctx context.Context, api client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			if err := count(); err != nil {
				return err
			}
			return api.Delete(ctx, object, options...)
		},
		SubResourcePatch: func(ctx context.Context, api client.Client, sub string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			if err := count(); err != nil {
				return err
			}
			return api.SubResource(sub).Patch(ctx, object, patch, options...)
		},
	})
}

func (c *cluster) restart(api client.Client) {
	c.t.Helper()
	c.reconciler.client, c.reconciler.written, c.reconciler.vips = api, writtenVersions{}, newVIPCache()
	c.reconciler.waiting = newWaitingServices(c.reconciler.vips)
	c.reconciler.had, c.reconciler.conflicts = heldAddresses{}, statusConflicts{}
	for _, vip := range c.vips() {
		c.reconciler.vips.put(&vip)
	}
}

func (c *cluster) vips() []millracev1beta1.VIP {
	c.t.Helper()
	vips := &millracev1beta1.VIPList{}
	if err := c.api.List(c.t.Context(), vips); err != nil {
		c.t.Fatal(err)
	}
	return vips.Items
}

// After a crash between any two writes, releasing completes.
func TestReleaseContinuesAfterCrash(t *testing.T) {
	for writes, ended := 0, false; !ended; writes++ {
		c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil))
		c.reconcile("web")
		service := c.service("web")
		service.Spec.Type, service.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
		if err := c.api.Update(t.Context(), service); err != nil {
			t.Fatal(err)
		}
		whole := c.reconciler.client
		c.restart(ending(c.api, writes))
		_, err := c.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(service)})
		if ended = err == nil; ended && writes < 4 {
			t.Errorf("release required only %d writes", writes)
		}
		c.restart(whole)
		c.reconcile("web")
		service = c.service("web")
		if left := len(service.Finalizers) + len(service.Status.Conditions) + len(service.Status.LoadBalancer.Ingress) + len(c.vips()); left > 0 {
			t.Errorf("crash after %d writes: remaining %v, %+v and %d VIPs", writes, service.Finalizers, service.Status, len(c.vips()))
		}
	}
}

// After a crash between any two writes, assigning completes, or the address is released if the Service was
// deleted.
func TestAssignmentContinuesAfterCrash(t *testing.T) {
	for writes, ended := 0, false; !ended; writes++ {
		for _, deleted := range []bool{false, true} {
			c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil), advertiseAll())
			whole := c.reconciler.client
			c.restart(ending(c.api, writes))
			key := client.ObjectKey{Namespace: "shop", Name: "web"}
			_, err := c.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
			if ended = err == nil; ended && writes < 2 {
				t.Errorf("assignment required only %d writes", writes)
			}
			if deleted {
				if err := c.api.Delete(t.Context(), c.service("web")); err != nil {
					t.Fatal(err)
				}
			}
			c.restart(whole)
			c.reconcile("web")
			if deleted {
				if vips := c.vips(); len(vips) > 0 {
					t.Errorf("crash after %d writes: a deleted Service has %+v", writes, vips)
				}
				continue
			}
			c.expectIngress("web", "203.0.113.0")
			if service := c.service("web"); !slices.Equal(service.Finalizers, finalizers) || len(c.vips()) != 1 {
				t.Errorf("crash after %d writes: finalizers %v, %d VIPs", writes, service.Finalizers, len(c.vips()))
			}
		}
	}
}

// Otherwise a deleted Service would free its address without the release delay.
func TestReservedAddressIsBoundAfterFinalizers(t *testing.T) {
	reserved := &millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: "203.0.113.1"},
		Spec:       millracev1beta1.VIPSpec{Address: "203.0.113.1", Claims: []millracev1beta1.VIPClaim{{Namespace: "shop", Name: "web"}}},
	}
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil), advertiseAll(), reserved)
	c.restart(interceptor.NewClient(c.reconciler.client.(client.WithWatch), interceptor.Funcs{
		Update: func(ctx context.Context, api client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			if got := c.service("web").Finalizers; !slices.Equal(got, finalizers) {
				t.Errorf("%s was written while the Service has finalizers %q", object.GetName(), got)
			}
			return api.Update(ctx, object, options...)
		},
	}))
	c.reconcile("web")
	c.expectIngress("web", "203.0.113.1")
}

// A rejected write is reported in the status, which keeps its addresses, until it succeeds.
func TestRefusedWritesReachTheService(t *testing.T) {
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil))
	whole := c.reconciler.client
	c.reconciler.client = interceptor.NewClient(whole.(client.WithWatch), interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return apierrors.NewForbidden(millracev1beta1.GroupVersion.WithResource("vips").GroupResource(), "203.0.113.0", errors.New("exceeded quota"))
		},
	})
	request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "shop", Name: "web"}}
	refused := "the API server rejected a write, which is retried: create VIP 203.0.113.0 for Service shop/web: " +
		`vips.millrace.io "203.0.113.0" is forbidden: exceeded quota`
	recorded := []string{"Warning WriteFailed " + refused}
	for range 3 {
		if _, err := c.reconciler.Reconcile(t.Context(), request); err == nil {
			t.Error("no error, so the Service is not retried")
		}
		c.expect("web", millracev1beta1.ConditionAddressAssigned, "False WriteFailed "+refused, recorded...)
		recorded = nil
	}
	c.reconciler.client = whole
	c.reconcile("web")
	c.expect("web", millracev1beta1.ConditionAddressAssigned, "True AddressAssigned has 203.0.113.0",
		"Normal AddressAssigned has 203.0.113.0", "Warning NotSelected no VIPAdvertisement selects 203.0.113.0, so no node announces it")
}

// The reclaim policy of the pool at the time of the release counts.
func TestCurrentReclaimPolicyApplies(t *testing.T) {
	const retain, remove = millracev1beta1.ReclaimRetain, millracev1beta1.ReclaimDelete
	for name, test := range map[string]struct {
		before, after, own millracev1beta1.ReclaimPolicy
		vips               int
	}{
		"retained after a change":        {remove, retain, "", 1},
		"no longer retained":             {retain, remove, "", 0},
		"retained by the VIP":            {remove, remove, retain, 1},
		"not retained by the pool alone": {remove, "", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, poolOf(test.before), ours("web", nil))
			c.reconcile("web")
			if test.own != "" {
				vip := &c.vips()[0]
				vip.Spec.ReclaimPolicy = test.own
				if err := c.api.Update(t.Context(), vip); err != nil {
					t.Fatal(err)
				}
				c.reconciler.vips.put(vip)
			}
			pool := &millracev1beta1.VIPPool{}
			if err := c.api.Get(t.Context(), client.ObjectKey{Name: "main"}, pool); err != nil {
				t.Fatal(err)
			}
			pool.Spec.ReclaimPolicy = test.after
			if err := c.api.Update(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			if err := c.api.Delete(t.Context(), c.service("web")); err != nil {
				t.Fatal(err)
			}
			c.reconcile("web")
			if vips := c.vips(); len(vips) != test.vips {
				t.Errorf("remaining: %+v", vips)
			}
		})
	}
}
