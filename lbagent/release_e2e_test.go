// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lbagent

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// A VIP that its Service gives up is at the router as one to be left, then not at all, and is still
// programmed. The phases are those that the API server keeps.
func TestRelease(t *testing.T) {
	w := newWorld(t)
	w.install()
	w.populate()
	w.start()
	w.Await(30*time.Second, "the VIP at the router and the agent ready", func() bool { return w.announced() && ready() })
	if got := w.communities(); got != "" {
		t.Errorf("the route has the communities %q from the start", got)
	}
	w.release(&millracev1alpha1.ClaimRelease{Phase: millracev1alpha1.ReleaseDraining, Since: metav1.NowMicro()})
	w.Await(10*time.Second, "the route as one to be left", func() bool { return strings.Contains(w.communities(), "graceful-shutdown") })
	if !w.announced() {
		t.Error("the router does not use the only path that it has")
	}
	w.release(&millracev1alpha1.ClaimRelease{Phase: millracev1alpha1.ReleaseWithdrawn, Since: metav1.NowMicro()})
	w.Await(10*time.Second, "no route", func() bool { return !w.announced() })
	w.Await(10*time.Second, "the LBNodeReport says why", func() bool {
		vips := w.report().Status.VIPs
		return vips.Programmed == 1 && slices.Equal(vips.Withheld, []millracev1alpha1.WithheldCount{{Reason: millracev1alpha1.ReasonReleasing, Count: 1}})
	})
	w.release(nil)
	w.Await(10*time.Second, "the route of a VIP that is kept after all", func() bool { return w.announced() && w.communities() == "" })
}

// release writes how far the Service has given its VIP up.
func (w *world) release(release *millracev1alpha1.ClaimRelease) {
	w.t.Helper()
	object := &millracev1alpha1.VIP{}
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: vip}, object); err != nil {
		w.t.Fatal(err)
	}
	object.Spec.Claims[0].Release = release
	if err := w.client.Update(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}

// communities are those of the VIP's route at the router; empty where it has none.
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
