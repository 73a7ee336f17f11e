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

	"github.com/millrace-lb/millrace/api/contest"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/route"
)

const (
	contestMessage = "another program overwrote the status three times in 10 s, so it is written every 30 s only; " +
		"metadata.managedFields names it: two controllers must not have the same class"
	objectContestMessage = "another program overwrote this object of the gateway's three times in 10 s, so it is written every " +
		"30 s only; metadata.managedFields names it: a second installation of Millrace, or a tool that has it in its manifests"
)

// contested counts what is contested.
var contested = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "millrace_gateway_contested_objects",
	Help: "Objects that another program overwrites again and again, or their statuses, so they are written every 30 s only; at the leader.",
}, []string{"kind"})

func init() { metrics.Registry.MustRegister(contested) }

// rivalry is what is known of who writes one object of ours, or the status of one. Another
// controller of the same class or name writes the same.
type rivalry struct {
	contest.Contest[client.Object]
	object client.Object
	// whole says that all of the object is ours, and not only its status.
	whole bool
	// previous is the version that we wrote over: the cache may show it for a while.
	previous string
	// pass is that in which the object was looked at last.
	pass int
}

// observe takes note of the present object, and returns for how long its status is not to be
// written.
func (c *rivalry) observe(present client.Object, now time.Time) time.Duration {
	c.object = present
	if c.previous != "" && present.GetResourceVersion() == c.previous {
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

// contests are those of all that was looked at in the last pass. The zero value is ready.
type contests struct {
	mu   sync.Mutex
	pass int
	of   map[place]*rivalry
}

// look does something with the contest of an object, one at a time.
func (c *contests) look(object client.Object, do func(*rivalry)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[place]*rivalry{}
	}
	at := placeOf(object)
	known := c.of[at]
	if known == nil || known.object.GetUID() != object.GetUID() {
		known = &rivalry{object: object}
		c.of[at] = known
	}
	known.pass = c.pass
	do(known)
}

// end ends a pass. It forgets what was not looked at, and returns the objects whose statuses are
// contested, and when the pause of the first of them ends; zero for never.
func (c *contests) end(now time.Time) (found map[route.Object]contestedObject, again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found = map[route.Object]contestedObject{}
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

// contestedObject is an object that is contested as a whole, or its status.
type contestedObject struct {
	client.Object
	whole bool
}

func objectOf(object client.Object) route.Object {
	return route.Object{Kind: reflect.TypeOf(object).Elem().Name(), Namespace: object.GetNamespace(), Name: object.GetName()}
}

// endContests ends a pass: what is contested now is known to the next one, which comes at once
// where that is news.
func (w *Writer) endContests() {
	found, again := w.contests.end(time.Now())
	if w.uncontested != nil {
		w.uncontested.Stop()
	}
	if again > 0 {
		w.uncontested = time.AfterFunc(again, w.Touch)
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

// contestProblems are what there is to tell of what is contested, and the objects that it is about.
func contestProblems(found map[route.Object]contestedObject) (problems []route.Problem, regarding map[route.Object]client.Object) {
	regarding = make(map[route.Object]client.Object, len(found))
	for object, of := range found {
		regarding[object] = of.Object
		problem := route.Problem{Object: object, Reason: millracev1beta1.ReasonStatusContested, Message: contestMessage}
		if of.whole {
			problem.Reason, problem.Message = route.ReasonObjectContested, objectContestMessage
		}
		problems = append(problems, problem)
	}
	return problems, regarding
}

// contestedCondition is told in the status of a Gateway, too.
func contestedCondition(generation int64) metav1.Condition {
	return metav1.Condition{
		Type: route.ConditionStatusContested, Status: metav1.ConditionTrue, Reason: millracev1beta1.ReasonStatusContested,
		Message: contestMessage, ObservedGeneration: generation,
	}
}

// putStatus writes the status of an object as it is to be where the cache has another one, unless
// it is contested and was written of late. isOurs reports whether an object has what is wanted now.
// The cache may be behind: then the API server refuses the write, and a later pass sees the newer
// object.
func (w *Writer) putStatus(ctx context.Context, present, changed client.Object, isOurs func(client.Object) bool) error {
	if !w.mayWrite(present, false, isOurs) || !w.shares.take(present.GetNamespace(), time.Now()) {
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

// mayWrite takes note of an object as the cache has it, and reports whether it is to be written:
// it is not right, and not contested and written of late. whole says whether all of it is ours.
// isOurs reports whether an object has what is wanted now.
func (w *Writer) mayWrite(present client.Object, whole bool, isOurs func(client.Object) bool) bool {
	may, isRight := false, isOurs(present)
	w.contests.look(present, func(c *rivalry) {
		c.whole = whole
		if isRight && !c.Contested() {
			// What is right, nobody has overwritten.
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

// wrote takes note of a write of an object that the cache has like this.
func (w *Writer) wrote(present client.Object, isOurs func(client.Object) bool) {
	w.contests.look(present, func(c *rivalry) {
		c.previous = present.GetResourceVersion()
		c.Wrote(isOurs, time.Now())
	})
}
