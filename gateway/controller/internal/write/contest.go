// SPDX-License-Identifier: Apache-2.0

package write

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/gateway/route"
)

// Another controller of the same class or name writes the same statuses: each answers a write of the
// other. After contestedAfter answers within contestWindow a status is contested. Then it is written
// once in contestPause, until one such pause has passed in peace. The operator does the same for the
// statuses of Services.
const (
	contestedAfter = 3
	contestWindow  = 10 * time.Second
	contestPause   = 30 * time.Second
)

const contestMessage = "another program overwrote the status three times in 10 s, so it is written every 30 s only; " +
	"metadata.managedFields names it: two controllers must not have the same class"

// contest is what is known of who writes the status of one object.
type contest struct {
	object client.Object
	// isOurs reports whether an object's status is as we wrote, or found it, last; nil once somebody has
	// overwritten it.
	isOurs func(client.Object) bool
	// former is the version that we wrote over: the cache may show it for a while.
	former string
	// overwritten is when that happened, in the last contestWindow.
	overwritten []time.Time
	// on says that the status is contested; written is when we wrote it last since then.
	on      bool
	written time.Time
	// pass is that in which the object was looked at last.
	pass int
}

// observe takes note of the present object, and returns for how long its status is not to be written.
func (c *contest) observe(present client.Object, now time.Time) time.Duration {
	c.object = present
	switch {
	case c.former != "" && present.GetResourceVersion() == c.former:
		// What we wrote is still on its way here.
	case c.isOurs != nil && !c.isOurs(present):
		c.isOurs = nil
		c.overwritten = append(slices.DeleteFunc(c.overwritten, func(at time.Time) bool { return now.Sub(at) > contestWindow }), now)
		if !c.on && len(c.overwritten) >= contestedAfter {
			// The next pass writes, and tells it in the same write.
			c.on = true
			return contestPause
		}
	case c.on && c.isOurs != nil && c.left(now) == 0:
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

// found takes note of a status that is right.
func (c *contest) found(isOurs func(client.Object) bool) { c.isOurs = isOurs }

// wrote takes note of a status that was written over a version of the object.
func (c *contest) wrote(former string, isOurs func(client.Object) bool, now time.Time) {
	c.isOurs, c.former = isOurs, former
	if c.on {
		c.written = now
	}
}

// contests are those of all statuses that were looked at in the last pass. The zero value is ready.
type contests struct {
	mu   sync.Mutex
	pass int
	of   map[place]*contest
}

// look does something with the contest of an object, one at a time.
func (c *contests) look(object client.Object, do func(*contest)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[place]*contest{}
	}
	at := placeOf(object)
	known := c.of[at]
	if known == nil || known.object.GetUID() != object.GetUID() {
		known = &contest{object: object}
		c.of[at] = known
	}
	known.pass = c.pass
	do(known)
}

// end ends a pass. It forgets what was not looked at, and returns the objects whose statuses are
// contested, and when the pause of the first of them ends; zero for never.
func (c *contests) end(now time.Time) (contested map[route.Object]client.Object, again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	contested = map[route.Object]client.Object{}
	for at, known := range c.of {
		if known.pass != c.pass {
			delete(c.of, at)
			continue
		}
		if !known.on {
			continue
		}
		contested[objectOf(known.object)] = known.object
		if left := known.left(now); left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	c.pass++
	return contested, again
}

func objectOf(object client.Object) route.Object {
	return route.Object{Kind: reflect.TypeOf(object).Elem().Name(), Namespace: object.GetNamespace(), Name: object.GetName()}
}

// endContests ends a pass: what is contested now is known to the next one, which comes at once where
// that is news.
func (w *Writer) endContests() {
	contested, again := w.contests.end(time.Now())
	if w.uncontested != nil {
		w.uncontested.Stop()
	}
	if again > 0 {
		w.uncontested = time.AfterFunc(again, w.Touch)
	}
	isSame := func(a, b client.Object) bool { return a.GetUID() == b.GetUID() }
	if !maps.EqualFunc(contested, w.contested, isSame) {
		w.Touch()
	}
	w.contested = contested
}

// contestProblems are what there is to tell of contested statuses.
func contestProblems(contested map[route.Object]client.Object) (problems []route.Problem) {
	for object := range contested {
		problems = append(problems, route.Problem{Object: object, Reason: millracev1alpha1.ReasonStatusContested, Message: contestMessage})
	}
	return problems
}

// contestedCondition is told in the status of a Gateway, too.
func contestedCondition(generation int64) metav1.Condition {
	return metav1.Condition{
		Type: route.ConditionStatusContested, Status: metav1.ConditionTrue, Reason: millracev1alpha1.ReasonStatusContested,
		Message: contestMessage, ObservedGeneration: generation,
	}
}

// putStatus writes the status of an object as it is to be where the cache has another one, unless it is
// contested and was written of late. isOurs reports whether an object has what is wanted now. The cache
// may be behind: then the API server refuses the write, and a later pass sees the newer object.
func (w *Writer) putStatus(ctx context.Context, present, changed client.Object, isOurs func(client.Object) bool) error {
	now, pause, isRight := time.Now(), time.Duration(0), isOurs(present)
	w.contests.look(present, func(c *contest) {
		pause = c.observe(present, now)
		if isRight {
			c.found(isOurs)
		}
	})
	if isRight || pause > 0 {
		return nil
	}
	patch := client.MergeFromWithOptions(present, client.MergeFromWithOptimisticLock{})
	err := w.Client.Status().Patch(ctx, changed, patch)
	switch {
	case err == nil:
		w.contests.look(present, func(c *contest) { c.wrote(present.GetResourceVersion(), isOurs, now) })
	case !apierrors.IsNotFound(err) && !w.isBehind(err):
		return fmt.Errorf("write the status of %T %s: %w", present, client.ObjectKeyFromObject(present), err)
	}
	return nil
}
