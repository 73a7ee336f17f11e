// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lbagent

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// A VIP released by its Service is depreferred at the router, then withdrawn, and still programmed. The API
// server validates the order of phases.
func TestRelease(t *testing.T) {
	w := newWorld(t)
	w.install()
	w.populate()
	w.start()
	w.Await(30*time.Second, "the VIP at the router and the agent ready", func() bool { return w.announced() && ready() })
	if got := w.communities(); got != "" {
		t.Errorf("communities of the first route = %q, want none", got)
	}
	w.release(&millracev1beta1.ClaimRelease{Phase: millracev1beta1.ReleaseDraining, Since: metav1.NowMicro()})
	w.Await(10*time.Second, "the route as one to be left", func() bool { return strings.Contains(w.communities(), "graceful-shutdown") })
	if !w.announced() {
		t.Error("the router does not use its only path")
	}
	w.release(&millracev1beta1.ClaimRelease{Phase: millracev1beta1.ReleaseWithdrawn, Since: metav1.NowMicro()})
	w.Await(10*time.Second, "no route", func() bool { return !w.announced() })
	w.release(nil)
	w.Await(10*time.Second, "the route of a retained VIP", func() bool { return w.announced() && w.communities() == "" })
	t.Run("without EndpointSlices", func(t *testing.T) { releaseWithoutEndpointSlices(t, w) })
}

// kubectl delete --cascade=foreground deletes the EndpointSlices of a Service that waits for its VIP, which
// is served until its release.
func releaseWithoutEndpointSlices(t *testing.T, w *world) {
	service := &corev1.Service{}
	key := client.ObjectKey{Namespace: "default", Name: w.claim().Name}
	if err := w.client.Get(t.Context(), key, service); err != nil {
		t.Fatal(err)
	}
	service.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"}
	if err := w.client.Update(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	w.release(nil, func(claim *millracev1beta1.VIPClaim) { claim.UID = string(service.UID) })

	if err := w.client.Delete(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	slicesOf := []client.DeleteAllOfOption{client.InNamespace(key.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: key.Name}}
	if err := w.client.DeleteAllOf(t.Context(), &discoveryv1.EndpointSlice{}, slicesOf...); err != nil {
		t.Fatal(err)
	}
	// Once the agent obeys a later write, it has seen the deletions.
	w.release(&millracev1beta1.ClaimRelease{Phase: millracev1beta1.ReleaseDraining, Since: metav1.NowMicro()})
	w.Await(10*time.Second, "the route as one to be left", func() bool { return strings.Contains(w.communities(), "graceful-shutdown") })
	w.release(&millracev1beta1.ClaimRelease{Phase: millracev1beta1.ReleaseWithdrawn, Since: metav1.NowMicro()})
	w.Await(10*time.Second, "no route", func() bool { return !w.announced() })
	// Changes of counters are written twice a minute.
	w.Await(45*time.Second, "the LBNodeReport with the release instead of missing endpoints", func() bool {
		vips := w.report().Status.VIPs
		return vips.Programmed == 1 && slices.Equal(vips.Withheld, []millracev1beta1.WithheldCount{{Reason: millracev1beta1.ReasonReleasing, Count: 1}})
	})
}

func (w *world) claim() millracev1beta1.VIPClaim {
	w.t.Helper()
	object := &millracev1beta1.VIP{}
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: vip}, object); err != nil {
		w.t.Fatal(err)
	}
	return object.Spec.Claims[0]
}

func (w *world) release(release *millracev1beta1.ClaimRelease, edits ...func(*millracev1beta1.VIPClaim)) {
	w.t.Helper()
	object := &millracev1beta1.VIP{}
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: vip}, object); err != nil {
		w.t.Fatal(err)
	}
	object.Spec.Claims[0].Release = release
	for _, edit := range edits {
		edit(&object.Spec.Claims[0])
	}
	if err := w.client.Update(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}

// communities returns the communities of the VIP's route at the router; empty without a route.
func (w *world) communities() string {
	w.t.Helper()
	var found struct {
		Paths []struct {
			Community struct{ String string }
		}
	}
	w.Show("show bgp ipv4 unicast "+vip+"/32 json", &found)
	if len(found.Paths) == 0 {
		return ""
	}
	return found.Paths[0].Community.String
}
