// SPDX-License-Identifier: Apache-2.0

package write

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/reference"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/gateway/route/model"
)

const (
	// maxEvents is the limit per pass; further events follow after pauseOfEvents.
	maxEvents     = 50
	pauseOfEvents = 10 * time.Second
	// burst and eventEvery limit each namespace, because each change by a tenant may cause a new problem.
	burst      = 50
	eventEvery = time.Second
	// maxNote is the maximum length in bytes of an event's note (events.k8s.io/v1).
	maxNote = 1024
)

type reported map[model.Problem]bool

// eventLimits are the token buckets by namespace. Cluster-scoped objects share one.
type eventLimits map[string]*rate.Limiter

func (a eventLimits) of(namespace string) *rate.Limiter {
	if a[namespace] == nil {
		a[namespace] = rate.NewLimiter(rate.Every(eventEvery), burst)
	}
	return a[namespace]
}

// forget drops full buckets.
func (a eventLimits) forget(now time.Time) {
	maps.DeleteFunc(a, func(_ string, left *rate.Limiter) bool { return left.TokensAt(now) >= burst })
}

// pendingEvent is an object's problems with one reason. The first fresh ones are not reported yet.
type pendingEvent struct {
	object   client.Object
	problems []model.Problem
	fresh    int
}

// report emits events for new problems. found are problems that do not come from the compiler, regarding
// compiled objects or others. Namespaces take turns, so that many problems of one do not delay another's.
func (w *Writer) report(compiled *Compiled, found []model.Problem, others map[model.Object]client.Object) {
	regarding := regardingOf(compiled.Objects)
	maps.Copy(regarding, others)
	if w.eventLimits == nil {
		w.eventLimits = eventLimits{}
	}
	next, now, left, isMore := reported{}, time.Now(), maxEvents, false
	for _, each := range roundRobin(w.pendingEvents(slices.Concat(compiled.Result.Problems, found), regarding), w.eventLimits, now) {
		for _, problem := range each.problems[each.fresh:] {
			next[problem] = true
		}
		if each.fresh == 0 {
			continue
		}
		if left == 0 || !w.eventLimits.of(each.object.GetNamespace()).AllowN(now, 1) {
			isMore = true
			continue
		}
		left--
		w.emit(each)
		for _, problem := range each.problems[:each.fresh] {
			next[problem] = true
		}
	}
	w.reported = next
	w.eventLimits.forget(now)
	if w.eventTimer != nil {
		w.eventTimer.Stop()
	}
	if isMore {
		w.eventTimer = time.AfterFunc(pauseOfEvents, w.Touch)
	}
}

func (w *Writer) pendingEvents(problems []model.Problem, regarding map[model.Object]client.Object) []*pendingEvent {
	type key struct {
		object model.Object
		reason string
	}
	var all []*pendingEvent
	known := map[key]*pendingEvent{}
	for _, problem := range problems {
		object := regarding[problem.Object]
		if object == nil {
			continue
		}
		of := known[key{problem.Object, problem.Reason}]
		if of == nil {
			of = &pendingEvent{object: object}
			known[key{problem.Object, problem.Reason}] = of
			all = append(all, of)
		}
		of.problems = append(of.problems, problem)
	}
	for _, of := range all {
		slices.SortStableFunc(of.problems, func(a, b model.Problem) int { return boolOrder(w.reported[a], w.reported[b]) })
		of.fresh = slices.IndexFunc(of.problems, func(p model.Problem) bool { return w.reported[p] })
		if of.fresh < 0 {
			of.fresh = len(of.problems)
		}
	}
	return all
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// roundRobin sorts by namespace in turns, the most remaining tokens first.
func roundRobin(all []*pendingEvent, left eventLimits, now time.Time) []*pendingEvent {
	type turn struct {
		notice *pendingEvent
		number int
		left   float64
	}
	seen, turns := map[string]int{}, make([]turn, 0, len(all))
	for _, each := range all {
		item := turn{notice: each, left: burst}
		if each.fresh > 0 {
			namespace := each.object.GetNamespace()
			if limiter := left[namespace]; limiter != nil {
				item.left = limiter.TokensAt(now)
			}
			item.number = seen[namespace]
			seen[namespace]++
		}
		turns = append(turns, item)
	}
	slices.SortStableFunc(turns, func(a, b turn) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(b.left, a.left))
	})
	for i := range turns {
		all[i] = turns[i].notice
	}
	return all
}

// emit includes the field in the reference, because the recorder merges events with equal object, version and
// reason.
func (w *Writer) emit(of *pendingEvent) {
	texts := make([]string, 0, len(of.problems))
	for _, problem := range of.problems {
		texts = append(texts, problem.Message)
	}
	var regarding runtime.Object = of.object
	if w.Scheme != nil {
		if reference, err := reference.GetPartialReference(w.Scheme, of.object, of.problems[0].Field); err == nil {
			regarding = reference
		}
	}
	w.Recorder.Eventf(regarding, nil, corev1.EventTypeWarning, of.problems[0].Reason, "Compile", "%s", truncateNote(strings.Join(texts, "; ")))
}

func regardingOf(objects *model.Objects) map[model.Object]client.Object {
	found := map[model.Object]client.Object{}
	add := func(kind string, object client.Object) {
		if object.GetDeletionTimestamp().IsZero() && object.GetUID() != types.UID("") {
			found[model.Object{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}] = object
		}
	}
	addAll(add, "Ingress", objects.Ingresses)
	addAll(add, "IngressClass", objects.IngressClasses)
	addAll(add, "BackendTLSPolicy", objects.BackendTLSPolicies)
	addAll(add, "ConfigMap", objects.ConfigMaps)
	addAll(add, "Gateway", objects.Gateways)
	addAll(add, "ListenerSet", objects.ListenerSets)
	addAll(add, "HTTPRoute", objects.HTTPRoutes)
	addAll(add, "GRPCRoute", objects.GRPCRoutes)
	addAll(add, "Secret", objects.Users)
	return found
}

func addAll[T client.Object](add func(kind string, object client.Object), kind string, objects []T) {
	for _, object := range objects {
		add(kind, object)
	}
}

// truncateNote truncates a message to maxNote at a character boundary.
func truncateNote(message string) string {
	if len(message) <= maxNote {
		return message
	}
	return strings.ToValidUTF8(message[:maxNote-4], "") + " ..."
}
