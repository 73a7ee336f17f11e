// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/source"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
	"github.com/millrace-lb/millrace/operator/internal/validation"
)

// announcements passes verdicts about addresses from the controller of Services, which makes them, to the
// controller of VIPs.
type announcements struct {
	mu       sync.Mutex
	problems map[string]validation.Problem
	queue    queue
}

func newAnnouncements() *announcements {
	return &announcements{problems: map[string]validation.Problem{}}
}

// source enqueues VIPs whose verdict changed.
func (a *announcements) source() source.Source {
	return source.Func(func(_ context.Context, q queue) error {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.queue = q
		return nil
	})
}

func (a *announcements) put(verdicts []validation.Announcement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, verdict := range verdicts {
		name := millracev1beta1.VIPName(verdict.Address)
		if before, known := a.problems[name]; known && before == verdict.Problem {
			continue
		}
		a.problems[name] = verdict.Problem
		if a.queue != nil {
			a.queue.AddAfter(ctrl.Request{NamespacedName: types.NamespacedName{Name: name}}, control.Coalesce)
		}
	}
}

// of returns why no node can announce a VIP, or the zero value, and whether a verdict was made.
func (a *announcements) of(vip string) (validation.Problem, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	problem, known := a.problems[vip]
	return problem, known
}

// forget removes the verdict about a VIP if vip is nil, because the VIP was deleted.
func (a *announcements) forget(_ queue, name string, vip *millracev1beta1.VIP) {
	if vip != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.problems, name)
}

// setAnnounced keeps the condition of a VIP of a Service until a verdict is made.
func (a *announcements) setAnnounced(vip *millracev1beta1.VIP) {
	if phaseOf(vip) != millracev1beta1.VIPBound {
		meta.RemoveStatusCondition(&vip.Status.Conditions, millracev1beta1.ConditionAnnounced)
		return
	}
	problem, known := a.of(vip.Name)
	if !known {
		return
	}
	condition := metav1.Condition{
		Type: millracev1beta1.ConditionAnnounced, Status: metav1.ConditionTrue, Reason: millracev1beta1.ReasonAnnounced,
		ObservedGeneration: vip.Generation,
	}
	if problem != (validation.Problem{}) {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, problem.Reason, problem.Message
	}
	meta.SetStatusCondition(&vip.Status.Conditions, condition)
}

// announcedCondition returns the condition of a Service, False if a node can announce only some of its
// addresses. The message lists the families.
func announcedCondition(verdicts []validation.Announcement) metav1.Condition {
	condition := metav1.Condition{
		Type: millracev1beta1.ConditionServiceAnnounced, Status: metav1.ConditionTrue, Reason: millracev1beta1.ReasonAnnounced,
	}
	var good, bad []string
	for _, family := range []ipam.Family{ipam.IPv4, ipam.IPv6} {
		present, failed := false, len(bad)
		for _, verdict := range verdicts {
			if ipam.FamilyOf(verdict.Address) != family {
				continue
			}
			present = true
			if problem := verdict.Problem; problem != (validation.Problem{}) {
				if len(bad) == 0 {
					condition.Status, condition.Reason = metav1.ConditionFalse, problem.Reason
				}
				bad = append(bad, fmt.Sprintf("%s: %s", family, problem.Message))
			}
		}
		if present && len(bad) == failed {
			good = append(good, family.String())
		}
	}
	var sentences []string
	if len(good) > 0 {
		sentences = append(sentences, "announced: "+strings.Join(good, ", "))
	}
	condition.Message = control.Truncate(strings.Join(append(sentences, bad...), "; "), control.MaxMessage)
	return condition
}
