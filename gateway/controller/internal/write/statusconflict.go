// SPDX-License-Identifier: Apache-2.0

package write

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/millrace-lb/millrace/api/conflict"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

const (
	conflictMessage = "another program overwrote the status three times in 10 s, so it is written every 30 s only; " +
		"metadata.managedFields names it: two controllers must not have the same class"
	objectConflictMessage = "another program overwrote this object of the gateway's three times in 10 s, so it is written every " +
		"30 s only; metadata.managedFields names it: a second installation of Millrace, or a tool that has it in its manifests"
)

var conflicting = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "millrace_gateway_conflicting_objects",
	Help: "Objects that another program overwrites again and again, or their statuses, so they are written every 30 s only; at the leader.",
}, []string{"kind"})

func init() { metrics.Registry.MustRegister(conflicting) }

// conflictState tracks another controller's writes of an object or its status.
type conflictState struct {
	conflict.Detector[client.Object]
	object client.Object
	// isOwned marks objects owned by the gateway; of others only the status can conflict.
	isOwned bool
	// previous was replaced by our last write and may still be cached.
	previous string
	pass     int
}

// observe records the cached object and returns the remaining pause before its next write.
func (c *conflictState) observe(present client.Object, now time.Time) time.Duration {
	c.object = present
	if c.previous != "" && present.GetResourceVersion() == c.previous {
		// The cache does not contain our last write yet.
		return c.Left(now)
	}
	was := c.Contested()
	pause := c.Observe(present, now)
	if c.Contested() && !was {
		// The next pass writes the status together with the condition.
		return conflict.Pause
	}
	return pause
}

// conflicts contains the objects observed in the last pass. The zero value is ready to use.
type conflicts struct {
	mu     sync.Mutex
	pass   int
	states map[objectKey]*conflictState
}

// observe serializes calls of do.
func (c *conflicts) observe(object client.Object, do func(*conflictState)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.states == nil {
		c.states = map[objectKey]*conflictState{}
	}
	at := objectKeyOf(object)
	known := c.states[at]
	if known == nil || known.object.GetUID() != object.GetUID() {
		known = &conflictState{object: object}
		c.states[at] = known
	}
	known.pass = c.pass
	do(known)
}

// endPass drops objects not observed in this pass, and returns the conflicting ones and the first end of
// a pause, or zero.
func (c *conflicts) endPass(now time.Time) (found map[model.Object]conflictingObject, again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found = map[model.Object]conflictingObject{}
	for at, known := range c.states {
		if known.pass != c.pass {
			delete(c.states, at)
			continue
		}
		if !known.Contested() {
			continue
		}
		found[objectOf(known.object)] = conflictingObject{known.object, known.isOwned}
		if left := known.Left(now); left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	c.pass++
	return found, again
}

type conflictingObject struct {
	client.Object
	isOwned bool
}

func objectOf(object client.Object) model.Object {
	return model.Object{Kind: reflect.TypeOf(object).Elem().Name(), Namespace: object.GetNamespace(), Name: object.GetName()}
}

// updateConflicts publishes the conflicting objects and enqueues a pass if their set changed.
func (w *Writer) updateConflicts() {
	found, again := w.conflicts.endPass(time.Now())
	if w.conflictTimer != nil {
		w.conflictTimer.Stop()
	}
	if again > 0 {
		w.conflictTimer = time.AfterFunc(again, w.Touch)
	}
	isSame := func(a, b conflictingObject) bool { return a.GetUID() == b.GetUID() }
	if !maps.EqualFunc(found, w.conflicting, isSame) {
		w.Touch()
	}
	w.conflicting = found
	conflicting.Reset()
	for object := range found {
		conflicting.WithLabelValues(object.Kind).Inc()
	}
}

func conflictProblems(found map[model.Object]conflictingObject) (problems []model.Problem, regarding map[model.Object]client.Object) {
	regarding = make(map[model.Object]client.Object, len(found))
	for object, of := range found {
		regarding[object] = of.Object
		problem := model.Problem{Object: object, Reason: millracev1beta1.ReasonStatusConflict, Message: conflictMessage}
		if of.isOwned {
			problem.Reason, problem.Message = model.ReasonObjectConflict, objectConflictMessage
		}
		problems = append(problems, problem)
	}
	return problems, regarding
}

func conflictCondition(generation int64) metav1.Condition {
	return metav1.Condition{
		Type: model.ConditionStatusConflicted, Status: metav1.ConditionTrue, Reason: millracev1beta1.ReasonStatusConflict,
		Message: conflictMessage, ObservedGeneration: generation,
	}
}

// putStatus patches a status that differs from the cache, unless a conflict pauses it. With a stale cache the
// patch fails with a conflict, and a later pass retries.
func (w *Writer) putStatus(ctx context.Context, present, changed client.Object, isOurs func(client.Object) bool) error {
	if !w.canWrite(present, false, isOurs) || !w.statusBudget.allow(present.GetNamespace(), time.Now()) {
		return nil
	}
	patch := client.MergeFromWithOptions(present, client.MergeFromWithOptimisticLock{})
	err := w.Client.Status().Patch(ctx, changed, patch)
	switch {
	case err == nil:
		w.recordWrite(present, isOurs)
	case !apierrors.IsNotFound(err) && !w.isStaleConflict(err):
		return fmt.Errorf("write the status of %T %s: %w", present, client.ObjectKeyFromObject(present), err)
	}
	return nil
}

// canWrite records the cached object and reports whether it differs and is not paused by a conflict.
// isOwned is set for objects owned by the gateway.
func (w *Writer) canWrite(present client.Object, isOwned bool, isOurs func(client.Object) bool) bool {
	may, isRight := false, isOurs(present)
	w.conflicts.observe(present, func(c *conflictState) {
		c.isOwned = isOwned
		if isRight && !c.Contested() {
			// The wanted state is in place, so no other controller has overwritten it.
			c.object = present
			c.Found(isOurs)
			return
		}
		pause := c.observe(present, time.Now())
		if isRight {
			c.Found(isOurs)
		}
		may = !isRight && pause == 0
	})
	return may
}

// recordWrite records a write that replaced present.
func (w *Writer) recordWrite(present client.Object, isOurs func(client.Object) bool) {
	w.conflicts.observe(present, func(c *conflictState) {
		c.previous = present.GetResourceVersion()
		c.RecordWrite(isOurs, time.Now())
	})
}
