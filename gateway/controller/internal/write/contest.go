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
	contestMessage = "another program overwrote the status three times in 10 s, so it is written every 30 s only; " +
		"metadata.managedFields names it: two controllers must not have the same class"
	objectContestMessage = "another program overwrote this object of the gateway's three times in 10 s, so it is written every " +
		"30 s only; metadata.managedFields names it: a second installation of Millrace, or a tool that has it in its manifests"
)

var contested = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "millrace_gateway_contested_objects",
	Help: "Objects that another program overwrites again and again, or their statuses, so they are written every 30 s only; at the leader.",
}, []string{"kind"})

func init() { metrics.Registry.MustRegister(contested) }

// contestState tracks another controller's writes of an object or its status.
type contestState struct {
	conflict.Detector[client.Object]
	object client.Object
	// whole marks objects owned by the gateway; of others only the status is contested.
	whole bool
	// previous was replaced by our last write and may still be cached.
	previous string
	pass     int
}

// observe records the cached object and returns the remaining pause before its next write.
func (c *contestState) observe(present client.Object, now time.Time) time.Duration {
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

// contests contains the objects observed in the last pass. The zero value is ready to use.
type contests struct {
	mu   sync.Mutex
	pass int
	of   map[objectKey]*contestState
}

// look serializes calls of do.
func (c *contests) look(object client.Object, do func(*contestState)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[objectKey]*contestState{}
	}
	at := objectKeyOf(object)
	known := c.of[at]
	if known == nil || known.object.GetUID() != object.GetUID() {
		known = &contestState{object: object}
		c.of[at] = known
	}
	known.pass = c.pass
	do(known)
}

// end drops objects not observed in this pass, and returns the contested ones and the first end of a pause, or
// zero.
func (c *contests) end(now time.Time) (found map[model.Object]contestedObject, again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found = map[model.Object]contestedObject{}
	for at, known := range c.of {
		if known.pass != c.pass {
			delete(c.of, at)
			continue
		}
		if !known.Contested() {
			continue
		}
		found[objectOf(known.object)] = contestedObject{known.object, known.whole}
		if left := known.Left(now); left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	c.pass++
	return found, again
}

type contestedObject struct {
	client.Object
	whole bool
}

func objectOf(object client.Object) model.Object {
	return model.Object{Kind: reflect.TypeOf(object).Elem().Name(), Namespace: object.GetNamespace(), Name: object.GetName()}
}

// endContests publishes the contested objects and enqueues a pass if their set changed.
func (w *Writer) endContests() {
	found, again := w.contests.end(time.Now())
	if w.contestTimer != nil {
		w.contestTimer.Stop()
	}
	if again > 0 {
		w.contestTimer = time.AfterFunc(again, w.Touch)
	}
	isSame := func(a, b contestedObject) bool { return a.GetUID() == b.GetUID() }
	if !maps.EqualFunc(found, w.contested, isSame) {
		w.Touch()
	}
	w.contested = found
	contested.Reset()
	for object := range found {
		contested.WithLabelValues(object.Kind).Inc()
	}
}

func contestProblems(found map[model.Object]contestedObject) (problems []model.Problem, regarding map[model.Object]client.Object) {
	regarding = make(map[model.Object]client.Object, len(found))
	for object, of := range found {
		regarding[object] = of.Object
		problem := model.Problem{Object: object, Reason: millracev1beta1.ReasonStatusContested, Message: contestMessage}
		if of.whole {
			problem.Reason, problem.Message = model.ReasonObjectContested, objectContestMessage
		}
		problems = append(problems, problem)
	}
	return problems, regarding
}

func contestedCondition(generation int64) metav1.Condition {
	return metav1.Condition{
		Type: model.ConditionStatusContested, Status: metav1.ConditionTrue, Reason: millracev1beta1.ReasonStatusContested,
		Message: contestMessage, ObservedGeneration: generation,
	}
}

// putStatus patches a status that differs from the cache, unless a contest pauses it. With a stale cache the
// patch fails with a conflict, and a later pass retries.
func (w *Writer) putStatus(ctx context.Context, present, changed client.Object, isOurs func(client.Object) bool) error {
	if !w.mayWrite(present, false, isOurs) || !w.statusBudget.take(present.GetNamespace(), time.Now()) {
		return nil
	}
	patch := client.MergeFromWithOptions(present, client.MergeFromWithOptimisticLock{})
	err := w.Client.Status().Patch(ctx, changed, patch)
	switch {
	case err == nil:
		w.wrote(present, isOurs)
	case !apierrors.IsNotFound(err) && !w.isBehind(err):
		return fmt.Errorf("write the status of %T %s: %w", present, client.ObjectKeyFromObject(present), err)
	}
	return nil
}

// mayWrite records the cached object and reports whether it differs and is not paused by a contest. whole is
// set for objects owned by the gateway.
func (w *Writer) mayWrite(present client.Object, whole bool, isOurs func(client.Object) bool) bool {
	may, isRight := false, isOurs(present)
	w.contests.look(present, func(c *contestState) {
		c.whole = whole
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

// wrote records a write that replaced present.
func (w *Writer) wrote(present client.Object, isOurs func(client.Object) bool) {
	w.contests.look(present, func(c *contestState) {
		c.previous = present.GetResourceVersion()
		c.Wrote(isOurs, time.Now())
	})
}
