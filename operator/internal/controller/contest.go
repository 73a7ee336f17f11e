// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Another program that writes the status of our Services, too, is answered by a write of ours, and
// that by one of its own. After contestedAfter of them within contestWindow the status is
// contested: it is written once in contestPause, until one such pause has passed in peace.
const (
	contestedAfter = 3
	contestWindow  = 10 * time.Second
	contestPause   = 30 * time.Second
)

// ownStatus is what of a Service's status is ours. Its fields are exported to be compared.
type ownStatus struct {
	Ingress    []corev1.LoadBalancerIngress
	Conditions []metav1.Condition
}

func ownStatusOf(service *corev1.Service) ownStatus {
	own := ownStatus{Ingress: service.Status.LoadBalancer.Ingress}
	for _, name := range serviceConditions {
		if condition := meta.FindStatusCondition(service.Status.Conditions, name); condition != nil {
			kept := *condition
			kept.LastTransitionTime = metav1.Time{}
			own.Conditions = append(own.Conditions, kept)
		}
	}
	return own
}

// contest is what is known of who writes the status of one Service.
type contest struct {
	uid types.UID
	// ours is the status as we wrote, or found it right; nil once somebody has overwritten it.
	ours *ownStatus
	// overwritten is when that happened, in the last contestWindow.
	overwritten []time.Time
	// on says that the status is contested; written is when we wrote it last since then.
	on      bool
	written time.Time
	// told are the conditions as they were last told in events, by type.
	told map[string]metav1.Condition
}

// observe takes note of the present status, and returns for how long it is not to be written.
func (c *contest) observe(present ownStatus, now time.Time) (pause time.Duration) {
	switch {
	case c.ours != nil && !equality.Semantic.DeepEqual(*c.ours, present):
		c.ours = nil
		c.overwritten = append(slices.DeleteFunc(c.overwritten, func(at time.Time) bool { return now.Sub(at) > contestWindow }), now)
		c.on = c.on || len(c.overwritten) >= contestedAfter
	case c.on && c.ours != nil && c.left(now) == 0:
		c.on, c.overwritten, c.written = false, nil, time.Time{}
	}
	return c.left(now)
}

// left is what is left of the pause after our last write.
func (c *contest) left(now time.Time) time.Duration {
	if !c.on || c.written.IsZero() {
		return 0
	}
	return max(0, min(contestPause, c.written.Add(contestPause).Sub(now)))
}

// wrote takes note of the status as it is after a write, or without one where it is right.
func (c *contest) wrote(status ownStatus, now time.Time) {
	c.ours = &status
	if c.on {
		c.written = now
	}
}

// contests are those of all Services, for the worker whose turn it is (turns).
type contests map[types.NamespacedName]*contest

func (c contests) of(service *corev1.Service) *contest {
	key := client.ObjectKeyFromObject(service)
	known := c[key]
	if known == nil || known.uid != service.UID {
		known = &contest{uid: service.UID, told: map[string]metav1.Condition{}}
		c[key] = known
	}
	return known
}
