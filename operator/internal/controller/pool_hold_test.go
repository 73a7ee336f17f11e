// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// A pool with addresses of endpoints is held until its specification changes.
func TestPoolIsHeldForEndpoints(t *testing.T) {
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, AddressType: discoveryv1.AddressTypeIPv4}
	for _, address := range []string{"203.0.113.9", "203.0.113.8", "203.0.113.11", "203.0.113.10", "x"} {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	const named = "203.0.113.8 (EndpointSlice shop/web), 203.0.113.9 (EndpointSlice shop/web), 203.0.113.10 (EndpointSlice shop/web), 1 more"
	for name, test := range map[string]struct {
		pool *millracev1beta1.VIPPool
		// usable is the previous status, for generation 1.
		usable   []string
		vips     []string
		want     []string
		held     string
		admitted bool
	}{
		"no overlap with the endpoints": {poolWith("203.0.113.0/30"), nil, nil, []string{"203.0.113.0/30"}, "", true},
		"new":                           {poolWith("203.0.113.0/28"), nil, nil, nil, named, false},
		"grown":                         {poolWith("203.0.113.0/28"), []string{"203.0.113.0/30"}, nil, []string{"203.0.113.0/30"}, named, true},
		"previously usable pool":        {poolWith("203.0.113.0/28"), []string{"203.0.113.0/28"}, nil, []string{"203.0.113.0/28"}, "", true},
		"another entry without overlap": {poolWith("203.0.113.0/30", "203.0.113.8/30"), []string{"203.0.113.8/30"}, nil, []string{"203.0.113.0/30", "203.0.113.8/30"}, "", true},
		"some endpoints are VIPs":       {poolWith("203.0.113.8/30"), nil, []string{"203.0.113.8", "203.0.113.9", "203.0.113.10"}, nil, "203.0.113.11", false},
		"all endpoints are VIPs":        {poolWith("203.0.113.8/31"), nil, []string{"203.0.113.8", "203.0.113.9"}, []string{"203.0.113.8/31"}, "", true},
		"endpoint addresses reserved":   {reserving(poolWith("203.0.113.0/28"), "203.0.113.8/30"), nil, nil, []string{"203.0.113.0/29", "203.0.113.12/30"}, "", true},
		"endpoints outside of the pool": {poolWith("2001:db8::/120"), nil, nil, []string{"2001:db8::/120"}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			test.pool.Generation, test.pool.Status.Usable = 2, test.usable
			objects := []client.Object{test.pool, slice.DeepCopy()}
			for _, address := range test.vips {
				objects = append(objects, &millracev1beta1.VIP{
					ObjectMeta: metav1.ObjectMeta{Name: address}, Spec: millracev1beta1.VIPSpec{Address: address},
				})
			}
			api := fake.NewClientBuilder().WithScheme(testScheme()).WithObjects(objects...).WithStatusSubresource(test.pool).Build()
			recorder := events.NewFakeRecorder(10)
			r := &poolReconciler{client: api, live: api, recorder: recorder, pools: newPoolIndex()}
			r.pools.hasAdded = true
			pool := &millracev1beta1.VIPPool{}
			look := func() {
				t.Helper()
				if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
					t.Fatal(err)
				}
				if err := api.Get(t.Context(), client.ObjectKeyFromObject(test.pool), pool); err != nil {
					t.Fatal(err)
				}
				held := meta.FindStatusCondition(pool.Status.Conditions, millracev1beta1.ConditionOverlapsEndpoints)
				if !slices.Equal(pool.Status.Usable, test.want) || (held != nil) != (test.held != "") {
					t.Fatalf("the status is %+v", pool.Status)
				}
				if held != nil && !strings.Contains(held.Message, test.held) {
					t.Errorf("message = %q", held.Message)
				}
				ready := meta.FindStatusCondition(pool.Status.Conditions, millracev1beta1.ConditionReady)
				if held != nil && ready.Reason != millracev1beta1.ReasonOverlapsEndpoints || (ready.Status == metav1.ConditionTrue) != (len(test.want) > 0) {
					t.Errorf("Ready = %+v", ready)
				}
				if admitted := newPoolIndex().pools([]millracev1beta1.VIPPool{*pool}).planned; (len(admitted) > 0) != test.admitted {
					t.Errorf("addresses are assigned from %+v", admitted)
				}
			}
			look()
			if err := api.Delete(t.Context(), slice); err != nil {
				t.Fatal(err)
			}
			look()
			if got := len(recorder.Events); (got > 0) != (test.held != "") || got > 1 {
				t.Errorf("%d events", got)
			}
			if test.held == "" {
				return
			}
			pool.Generation++
			if err := api.Update(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			test.want, test.held, test.admitted = test.pool.Spec.Addresses, "", true
			look()
		})
	}
}

func reserving(pool *millracev1beta1.VIPPool, texts ...string) *millracev1beta1.VIPPool {
	pool.Spec.Reserved = texts
	return pool
}

// A pool is checked before its new addresses are assigned, unless its status has no room for them.
func TestAddedAddressesAreNotAssigned(t *testing.T) {
	grown := poolWith("203.0.113.0/24")
	grown.Generation, grown.Status.Usable = 1, []string{"203.0.113.0/31"}
	planned := newPoolIndex().pools([]millracev1beta1.VIPPool{*grown}).planned
	if added := netip.MustParseAddr("203.0.113.2"); len(planned) != 1 || planned[0].Addresses.Contains(added) || !planned[0].Addresses.Contains(added.Prev()) {
		t.Errorf("planned pools = %+v", planned)
	}
	full := poolWith("203.0.113.0/24")
	full.Generation = 1
	full.Status.Usable = slices.Repeat([]string{"203.0.113.0/31"}, 512)
	full.Status.Conditions = []metav1.Condition{{Type: millracev1beta1.ConditionReady, ObservedGeneration: 1}}
	pools, _ := desired.Pools([]millracev1beta1.VIPPool{*full}, desired.NewOccupation(nil))
	if admitted := desired.Admitted(pools, []millracev1beta1.VIPPool{*full}); len(admitted) != 1 || !admitted[0].Addresses.Equal(pools[0].Addresses) {
		t.Errorf("admitted pools = %+v", admitted)
	}
}
