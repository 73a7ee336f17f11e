// SPDX-License-Identifier: Apache-2.0

package write

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/contest"
	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/gateway/route"
)

const contestMessage = "another program overwrote the status three times in 10 s, so it is written every 30 s only; " +
	"metadata.managedFields names it: two controllers must not have the same class"

// statusContest is what is known of who writes the status of one object. Another controller of the
// same class or name writes the same statuses.
type statusContest struct {
	contest.Contest[client.Object]
	object client.Object
	// former is the version that we wrote over: the cache may show it for a while.
	former string
	// pass is that in which the object was looked at last.
	pass int
}

// observe takes note of the present object, and returns for how long its status is not to be written.
func (c *statusContest) observe(present client.Object, now time.Time) time.Duration {
	c.object = present
	if c.former != "" && present.GetResourceVersion() == c.former {
		// What we wrote is still on its way here.
		return c.Left(now)
	}
	was := c.Contested()
	pause := c.Observe(present, now)
	if c.Contested() && !was {
		// The next pass writes, and tells it in the same write.
		return contest.Pause
	}
	return pause
}

// contests are those of all statuses that were looked at in the last pass. The zero value is ready.
type contests struct {
	mu   sync.Mutex
	pass int
	of   map[place]*statusContest
}

// look does something with the contest of an object, one at a time.
func (c *contests) look(object client.Object, do func(*statusContest)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[place]*statusContest{}
	}
	at := placeOf(object)
	known := c.of[at]
	if known == nil || known.object.GetUID() != object.GetUID() {
		known = &statusContest{object: object}
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
		if !known.Contested() {
			continue
		}
		contested[objectOf(known.object)] = known.object
		if left := known.Left(now); left > 0 && (again == 0 || left < again) {
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
	w.contests.look(present, func(c *statusContest) {
		pause = c.observe(present, now)
		if isRight {
			c.Found(isOurs)
		}
	})
	if isRight || pause > 0 || !w.shares.take(present.GetNamespace(), time.Now()) {
		return nil
	}
	patch := client.MergeFromWithOptions(present, client.MergeFromWithOptimisticLock{})
	err := w.Client.Status().Patch(ctx, changed, patch)
	switch {
	case err == nil:
		w.contests.look(present, func(c *statusContest) {
			c.former = present.GetResourceVersion()
			c.Wrote(isOurs, now)
		})
	case !apierrors.IsNotFound(err) && !w.isBehind(err):
		return fmt.Errorf("write the status of %T %s: %w", present, client.ObjectKeyFromObject(present), err)
	}
	return nil
}
