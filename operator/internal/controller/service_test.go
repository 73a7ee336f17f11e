// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"testing"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

func sharer(name string, port int32) millracev1beta1.VIPClaim {
	return millracev1beta1.VIPClaim{
		Namespace: "shop", Name: name, UID: name, SharingKey: "dns",
		Ports: []millracev1beta1.ClaimedPort{{Port: port, Protocol: "TCP"}},
	}
}

// A claim that another operator wrote after the plan was made is not overwritten.
func TestBindUsesPlannedVersion(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := millracev1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	vip := vipAt("", "a", "")
	vip.Spec.Claims = []millracev1beta1.VIPClaim{sharer("first", 80)}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(vip).Build()
	r := &serviceReconciler{client: api, live: api, vips: newVIPCache()}
	if err := r.refresh(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	var addresses netipx.IPSetBuilder
	addresses.Add(address)
	set, err := addresses.IPSet()
	if err != nil {
		t.Fatal(err)
	}
	pools := []ipam.Pool{{Name: "p", AutoAssign: true, Addresses: ipam.NewAddresses(set)}}
	request := ipam.Request{
		Owner: ipam.Owner{Namespace: "shop", Name: "late", UID: "late"}, Families: []ipam.Family{ipam.IPv4}, RequireAll: true,
		Eligible: []string{"p"}, SharingKey: "dns", Ports: []ipam.Port{{Number: 443, Protocol: "TCP"}},
	}
	plan, objects := r.vips.plan(pools, request)
	if len(plan.Bind) != 1 {
		t.Fatalf("plan = %+v", plan)
	}

	other := r.vips.object(address).DeepCopy()
	other.Spec.Claims = append(other.Spec.Claims, sharer("rival", 443))
	if err := api.Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if !r.vips.put(other) {
		t.Fatal("put reports no change for a claim of another Service")
	}
	if ok, err := r.writeVIPs(t.Context(), plan, objects); ok || err != nil {
		t.Errorf("writeVIPs = %v, %v, want a new plan", ok, err)
	}
	stored := &millracev1beta1.VIP{}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(vip), stored); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(stored.Spec.Claims, claimsNamed("shop", "late")) || len(stored.Spec.Claims) != 2 {
		t.Errorf("claims = %+v", stored.Spec.Claims)
	}
	if plan, _ := r.vips.plan(pools, request); len(plan.Bind) > 0 || len(plan.Refusals) != 1 || plan.Refusals[0].Reason != ipam.PortConflict {
		t.Errorf("new plan = %+v", plan)
	}
}

// If one operator releases a VIP while another operator adds a claim, the VIP and the claim remain.
func TestReleaseDeletesWhatItKnows(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := millracev1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	vip := vipAt("", "a", "")
	vip.Spec.Claims = []millracev1beta1.VIPClaim{sharer("first", 80)}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(vip).Build()
	r := &serviceReconciler{client: api, live: api, vips: newVIPCache()}
	if err := r.refresh(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	known := r.vips.object(address)
	other := known.DeepCopy()
	other.Spec.Claims = append(other.Spec.Claims, sharer("rival", 443))
	if err := api.Update(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := r.release(t.Context(), known, claimsNamed("shop", "first")); err != nil {
		t.Fatal(err)
	}
	stored := &millracev1beta1.VIP{}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(vip), stored); err != nil {
		t.Fatal(err)
	}
	if claims := stored.Spec.Claims; len(claims) != 1 || claims[0].Name != "rival" {
		t.Errorf("claims = %+v", claims)
	}
}

// A claim keeps its position when its ports change; a bound reservation moves to the end.
func TestBindKeepsTheOrderOfClaims(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := millracev1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	byHand := millracev1beta1.VIPClaim{Namespace: "shop", Name: "hand"}
	vip := vipAt("", "a", "")
	vip.Spec.Claims = []millracev1beta1.VIPClaim{byHand, sharer("first", 80), sharer("second", 81)}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(vip).Build()
	r := &serviceReconciler{client: api, live: api, vips: newVIPCache()}
	if err := r.refresh(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		owner string
		want  []string
	}{
		{"first", []string{"hand", "first", "second"}},
		{"hand", []string{"first", "second", "hand"}},
		{"second", []string{"first", "second", "hand"}},
	} {
		claim := ipam.Claim{
			Owner: ipam.Owner{Namespace: "shop", Name: step.owner, UID: step.owner}, SharingKey: "dns",
			Ports: []ipam.Port{{Number: 8080, Protocol: "UDP"}},
		}
		if ok, err := r.bindVIP(t.Context(), r.vips.object(address), claim); !ok || err != nil {
			t.Fatalf("bindVIP for %s = %v, %v", step.owner, ok, err)
		}
		var order []string
		for _, written := range r.vips.object(address).Spec.Claims {
			order = append(order, written.Name)
			if written.Name == step.owner && (written.UID != step.owner || len(written.Ports) != 1 || written.Ports[0].Port != 8080) {
				t.Errorf("claim of %s = %+v", step.owner, written)
			}
		}
		if !slices.Equal(order, step.want) {
			t.Errorf("after %s the claims belong to %v, want %v", step.owner, order, step.want)
		}
	}
}
