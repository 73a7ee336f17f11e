// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
)

func claimed(address string, uid types.UID, change func(*millracev1beta1.VIP)) *millracev1beta1.VIP {
	vip := &millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: address, UID: types.UID(address)},
		Spec: millracev1beta1.VIPSpec{
			Address: address, Pool: "main", Claims: []millracev1beta1.VIPClaim{{Namespace: "shop", Name: "web", UID: string(uid)}},
		},
	}
	if change != nil {
		change(vip)
	}
	return vip
}

func byOperator(after time.Duration) func(*millracev1beta1.VIP) {
	created := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return func(vip *millracev1beta1.VIP) {
		vip.CreationTimestamp = metav1.NewTime(created)
		at := metav1.NewTime(created.Add(after))
		vip.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: control.FieldOwner, Operation: metav1.ManagedFieldsOperationUpdate, Time: &at,
			APIVersion: "millrace.io/v1beta1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{}}`),
		}}
	}
}

func releasing(vip *millracev1beta1.VIP) {
	vip.Spec.Claims[0].Release = &millracev1beta1.ClaimRelease{Phase: millracev1beta1.ReleaseDraining, Since: metav1.NowMicro()}
}

// A claim with the UID of a Service that does not exist belongs to the Service of that namespace and name.
func TestStaleClaims(t *testing.T) {
	toClusterIP := func(service *corev1.Service) {
		service.Spec.Type, service.Spec.LoadBalancerClass = corev1.ServiceTypeClusterIP, nil
	}
	dualStack := func(service *corev1.Service) {
		service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	}
	web := ours("web", nil)
	for name, test := range map[string]struct {
		service *corev1.Service
		vips    []*millracev1beta1.VIP
		want    []string
	}{
		"inherited":                    {web, []*millracev1beta1.VIP{claimed("203.0.113.2", "former", nil)}, []string{"203.0.113.2 1"}},
		"inherited from an operator":   {web, []*millracev1beta1.VIP{claimed("203.0.113.2", "former", byOperator(0))}, []string{"203.0.113.2 1"}},
		"inherited, outside of pools":  {web, []*millracev1beta1.VIP{claimed("198.51.100.1", "former", nil)}, []string{"198.51.100.1 1"}},
		"being released":               {web, []*millracev1beta1.VIP{claimed("203.0.113.2", "former", releasing)}, []string{"203.0.113.3 1"}},
		"two claims, one required":     {web, []*millracev1beta1.VIP{claimed("203.0.113.1", "a", nil), claimed("203.0.113.2", "b", nil)}, []string{"203.0.113.1 1"}},
		"no claim required":            {web, []*millracev1beta1.VIP{claimed("203.0.113.1", "1", nil), claimed("203.0.113.2", "b", nil)}, []string{"203.0.113.1 1"}},
		"both families":                {ours("web", dualStack), []*millracev1beta1.VIP{claimed("2001:db8::7", "a", nil), claimed("203.0.113.2", "a", nil)}, []string{"2001:db8::7 1", "203.0.113.2 1"}},
		"not a load balancer":          {ours("web", toClusterIP), []*millracev1beta1.VIP{claimed("203.0.113.2", "former", nil)}, nil},
		"restored before its Service":  {nil, []*millracev1beta1.VIP{claimed("203.0.113.2", "former", nil)}, []string{"203.0.113.2 "}},
		"restored with field managers": {nil, []*millracev1beta1.VIP{claimed("203.0.113.2", "former", byOperator(-time.Hour))}, []string{"203.0.113.2 "}},
		"restored while released":      {nil, []*millracev1beta1.VIP{claimed("203.0.113.2", "former", releasing)}, nil},
		"claim of a deleted Service":   {nil, []*millracev1beta1.VIP{claimed("203.0.113.2", "former", byOperator(0))}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{poolOf(millracev1beta1.ReclaimDelete)}
			for _, vip := range test.vips {
				vip.Name = millracev1beta1.VIPName(netip.MustParseAddr(vip.Spec.Address))
				objects = append(objects, vip.DeepCopy())
			}
			if test.service != nil {
				objects = append(objects, test.service.DeepCopy())
			}
			c := newCluster(t, objects...)
			c.restart(c.reconciler.client)
			c.reconcile("web")
			var got []string
			for _, vip := range c.vips() {
				for _, claim := range vip.Spec.Claims {
					got = append(got, vip.Spec.Address+" "+claim.UID)
				}
			}
			if slices.Sort(got); !slices.Equal(got, test.want) {
				t.Errorf("claims = %q, want %q", got, test.want)
			}
		})
	}
}

// A Service does not inherit a claim whose Service is only missing in the cache.
func TestClaimOfUncachedServiceRemains(t *testing.T) {
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil))
	c.reconcile("web")
	stale := ours("web", nil)
	stale.UID = "former"
	if err := c.reconciler.resolveStaleClaims(t.Context(), client.ObjectKeyFromObject(stale), stale); err != nil {
		t.Fatal(err)
	}
	if claims := c.vips()[0].Spec.Claims; claims[0].UID != "1" || c.reconciler.vips.isFormer("1") {
		t.Errorf("claims = %+v", claims)
	}
}
