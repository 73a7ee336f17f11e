// SPDX-License-Identifier: Apache-2.0

// Package readiness decides when endpoints that are not ready are served all the same. When an API
// server comes back that was away for long, Kubernetes takes all nodes for dead for a moment, and
// all their pods turn unready, though nothing is wrong with them. It is pure.
//
// The idea is the panic threshold of Envoy: where most hosts fail their checks, it is rather the
// checks that fail.
package readiness

import (
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/lbagent/internal/delta"
)

// AtOnce is how close to each other endpoints turn unready that count together.
const AtOnce = 30 * time.Second

// moment is how long those that turn unready after that wait for others: EndpointSlices of several
// Services come one after another, and pods that are ready again may all turn unready once more.
const moment = 2 * time.Second

// Served is what is served though it is not ready; zero where that is nothing.
type Served struct {
	// Endpoints are served, of so many Services. An endpoint counts once in each EndpointSlice.
	Endpoints, Services int
}

// Threshold knows which endpoints were ready. The zero value knows of none. It is not safe for
// concurrent use.
type Threshold struct {
	// last is what known was taken from.
	last  []*discoveryv1.EndpointSlice
	known map[types.NamespacedName]*slice
	// losing are those of known with something lost.
	losing map[types.NamespacedName]*slice
	// on is true from when it is exceeded until AtOnce after over, which is since when it is not any
	// more; zero while it is.
	on   bool
	over time.Time
}

// slice is an EndpointSlice with what turned unready in it.
type slice struct {
	present *discoveryv1.EndpointSlice
	// ready is how many of its endpoints are.
	ready int
	// lost are those that were ready and are not any more, each by its first address with since
	// when; nil without any. Such a pod is still there, and does not terminate.
	lost map[string]time.Time
	// shown has the endpoints in showing as ready ones.
	shown   *discoveryv1.EndpointSlice
	showing []string
}

// New returns a Threshold after an agent that worked by these EndpointSlices.
func New(before []*discoveryv1.EndpointSlice) *Threshold {
	t := &Threshold{}
	t.take(before, time.Time{})
	return t
}

// Advance takes the EndpointSlices that there are and returns those to work by, what in them is
// served though it is not ready, and after how long Advance is due again; 0 means it is not.
// answers reports whether a node answers probes.
//
// Where most endpoints of most Services turned unready at once, while their nodes answer, those go
// on being served until they terminate or go, or their node stops answering. When most Services
// have most of their endpoints back, the rest has AtOnce to follow, and what turns unready meanwhile
// is served for a moment more. One Service alone is never most.
func (t *Threshold) Advance(
	present []*discoveryv1.EndpointSlice, answers func(node string) bool, now time.Time,
) (_ []*discoveryv1.EndpointSlice, served Served, again time.Duration) {
	t.take(present, now)
	since := t.advance(answers, now)
	if !since.IsZero() {
		again = since.Add(AtOnce).Sub(now)
	}
	if !t.on {
		return present, Served{}, again
	}
	result := slices.Clone(present)
	services := map[types.NamespacedName]bool{}
	isServed := func(since time.Time) bool {
		if t.over.IsZero() || since.Before(t.over) {
			return true
		}
		left := since.Add(moment).Sub(now)
		if left > 0 {
			again = min(again, left)
		}
		return left > 0
	}
	for i, object := range present {
		if object == nil {
			continue
		}
		s := t.known[nameOf(object)]
		if kept := s.answering(answers, isServed); len(kept) > 0 {
			result[i] = s.show(kept)
			served.Endpoints += len(kept)
			services[serviceOf(object)] = true
		}
	}
	served.Services = len(services)
	return result, served, again
}

// advance decides whether endpoints are served unready, and returns since when what there is to
// forget or to end is waiting; zero where there is nothing.
func (t *Threshold) advance(answers func(node string) bool, now time.Time) (since time.Time) {
	if !t.over.IsZero() && now.Sub(t.over) >= AtOnce {
		t.on, t.over = false, time.Time{}
	}
	if !t.on {
		since = t.forget(now)
	}
	switch {
	case t.isExceeded(answers):
		t.on, t.over = true, time.Time{}
		return time.Time{}
	case t.on && t.over.IsZero():
		t.over = now
	}
	if t.on {
		return t.over
	}
	return since
}

// take notes what turned unready since the last time.
func (t *Threshold) take(present []*discoveryv1.EndpointSlice, now time.Time) {
	if t.known == nil {
		t.known = make(map[types.NamespacedName]*slice, len(present))
		t.losing = map[types.NamespacedName]*slice{}
	}
	came, went := delta.Between(t.last, present)
	t.last = present
	for _, object := range came {
		name := nameOf(object)
		s := t.known[name]
		if s == nil {
			s = &slice{}
			t.known[name] = s
		}
		s.take(object, now)
		t.note(name, s)
	}
	for _, object := range went {
		// Else another one is in its place.
		name := nameOf(object)
		if s := t.known[name]; s != nil && s.present == object {
			delete(t.known, name)
			delete(t.losing, name)
		}
	}
}

// note notes whether a slice has something lost.
func (t *Threshold) note(name types.NamespacedName, s *slice) {
	if len(s.lost) > 0 {
		t.losing[name] = s
	} else {
		delete(t.losing, name)
	}
}

// take replaces a slice by a newer one.
func (s *slice) take(object *discoveryv1.EndpointSlice, now time.Time) {
	wasReady := map[string]bool{}
	if s.present != nil {
		for i := range s.present.Endpoints {
			if e := &s.present.Endpoints[i]; isReady(e) {
				wasReady[addressOf(e)] = true
			}
		}
	}
	lost := map[string]time.Time{}
	s.ready = 0
	for i := range object.Endpoints {
		e := &object.Endpoints[i]
		if isReady(e) {
			s.ready++
			continue
		}
		since, known := s.lost[addressOf(e)]
		if wasReady[addressOf(e)] {
			since, known = now, true
		}
		if known && (e.Conditions.Terminating == nil || !*e.Conditions.Terminating) {
			lost[addressOf(e)] = since
		}
	}
	s.present, s.lost, s.shown, s.showing = object, lost, nil, nil
}

// forget drops what turned unready too long ago to count with what does now, and returns when the
// oldest of the rest did.
func (t *Threshold) forget(now time.Time) (oldest time.Time) {
	for name, s := range t.losing {
		for address, since := range s.lost {
			switch {
			case now.Sub(since) >= AtOnce:
				delete(s.lost, address)
			case oldest.IsZero() || since.Before(oldest):
				oldest = since
			}
		}
		t.note(name, s)
	}
	return oldest
}

// isExceeded reports whether most endpoints of most Services turned unready, and those on nodes
// that answer are as many.
func (t *Threshold) isExceeded(answers func(node string) bool) bool {
	// That is so nearly always.
	if len(t.losing) == 0 {
		return false
	}
	type count struct{ all, lost int }
	counts := map[types.NamespacedName]count{}
	for _, s := range t.known {
		if s.ready+len(s.lost) == 0 {
			continue
		}
		c := counts[serviceOf(s.present)]
		c.all += s.ready + len(s.lost)
		c.lost += len(s.answering(answers, func(time.Time) bool { return true }))
		counts[serviceOf(s.present)] = c
	}
	concerned := 0
	for _, c := range counts {
		if 2*c.lost > c.all {
			concerned++
		}
	}
	return concerned > 1 && 2*concerned > len(counts)
}

// answering returns the addresses of endpoints on nodes that answer, in the slice's order, of those
// that count by the time at which they were lost.
func (s *slice) answering(answers func(node string) bool, counts func(since time.Time) bool) (addresses []string) {
	if len(s.lost) == 0 {
		return nil
	}
	for i := range s.present.Endpoints {
		e := &s.present.Endpoints[i]
		since, lost := s.lost[addressOf(e)]
		if lost && !isReady(e) && e.NodeName != nil && answers(*e.NodeName) && counts(since) {
			addresses = append(addresses, addressOf(e))
		}
	}
	return addresses
}

// show returns the slice with these endpoints as ready ones, the same object for as long as
// neither is another.
func (s *slice) show(addresses []string) *discoveryv1.EndpointSlice {
	if s.shown != nil && slices.Equal(s.showing, addresses) {
		return s.shown
	}
	s.shown, s.showing = s.present.DeepCopy(), addresses
	for i := range s.shown.Endpoints {
		e := &s.shown.Endpoints[i]
		if !isReady(e) && slices.Contains(addresses, addressOf(e)) {
			yes := true
			e.Conditions.Ready, e.Conditions.Serving = &yes, &yes
		}
	}
	return s.shown
}

// isReady reads Ready, of which nil is true (EndpointConditions, discovery.k8s.io/v1).
func isReady(e *discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

// addressOf is the first address, which alone counts.
func addressOf(e *discoveryv1.Endpoint) string {
	if len(e.Addresses) == 0 {
		return ""
	}
	return e.Addresses[0]
}

func nameOf(object *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: object.Namespace, Name: object.Name}
}

func serviceOf(object *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: object.Namespace, Name: object.Labels[discoveryv1.LabelServiceName]}
}
