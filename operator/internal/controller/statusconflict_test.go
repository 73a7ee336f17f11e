// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/conflict"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func (c *cluster) tick(wait time.Duration, name string) int {
	c.t.Helper()
	now := c.reconciler.now().Add(wait)
	c.reconciler.now = func() time.Time { return now }
	before := c.writes
	request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "shop", Name: name}}
	if _, err := c.reconciler.Reconcile(c.t.Context(), request); err != nil {
		c.t.Fatal(err)
	}
	return c.writes - before
}

func (c *cluster) overwrite(name string, conditions bool, addresses ...string) {
	c.t.Helper()
	service := c.service(name)
	service.Status.LoadBalancer.Ingress = at(addresses...)
	if conditions {
		service.Status.Conditions = nil
	}
	if err := c.api.Status().Update(c.t.Context(), service); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) reasonOfServed(name string) string {
	c.t.Helper()
	if found := meta.FindStatusCondition(c.service(name).Status.Conditions, millracev1beta1.ConditionServed); found != nil {
		return found.Reason
	}
	return ""
}

// A status that another program keeps overwriting is written at the rate of package conflict.Pause and
// reported once.
func TestContestedStatus(t *testing.T) {
	for name, conditions := range map[string]bool{"ingress": false, "all of the status": true} {
		t.Run(name, func(t *testing.T) {
			c := newDrainingCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil), advertiseAll())
			c.reconcile("web")
			writes := 0
			for range 200 {
				c.overwrite("web", conditions, "198.51.100.77")
				writes += c.tick(100*time.Millisecond, "web")
			}
			if writes < conflict.Overwrites || writes > conflict.Overwrites+1 {
				t.Errorf("%d writes within 20 s", writes)
			}
			c.tick(conflict.Pause, "web")
			if reason := c.reasonOfServed("web"); reason != millracev1beta1.ReasonStatusConflict {
				t.Errorf("reason = %q", reason)
			}
			c.expectIngress("web", "203.0.113.0", "198.51.100.77")
			reports := 0
			for len(c.events.Events) > 0 {
				if strings.Contains(<-c.events.Events, millracev1beta1.ReasonStatusConflict) {
					reports++
				}
			}
			if reports != 1 {
				t.Errorf("reported %d times, want once", reports)
			}
		})
	}
}

// The conflict ends after a pause without other writes.
func TestContestEnds(t *testing.T) {
	c := newDrainingCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil), advertiseAll())
	c.reconcile("web")
	for range conflict.Overwrites {
		c.overwrite("web", false)
		c.tick(time.Second, "web")
	}
	if reason := c.reasonOfServed("web"); reason != millracev1beta1.ReasonStatusConflict {
		t.Errorf("reason = %q", reason)
	}
	if again := c.after(conflict.Pause-time.Second, "web"); again != time.Second {
		t.Errorf("requeued after %s", again)
	}
	if again := c.after(time.Second, "web"); again != 0 || c.reasonOfServed("web") != millracev1beta1.ReasonServed {
		t.Errorf("requeued after %s, reason = %q", again, c.reasonOfServed("web"))
	}
}

func TestRareOverwritesAreNoContest(t *testing.T) {
	c := newDrainingCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil), advertiseAll())
	c.reconcile("web")
	for range 20 {
		c.overwrite("web", false)
		if writes := c.tick(conflict.Window/2+time.Second, "web"); writes != 1 {
			t.Fatalf("%d writes, want 1", writes)
		}
		if got := c.names("web"); !slices.Equal(got, []string{"203.0.113.0"}) {
			t.Fatalf("addresses in the status = %q", got)
		}
	}
	if reason := c.reasonOfServed("web"); reason != millracev1beta1.ReasonServed {
		t.Errorf("reason = %q", reason)
	}
}
