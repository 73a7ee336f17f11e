// SPDX-License-Identifier: Apache-2.0

// Package readiness decides when unready endpoints are served nevertheless. After a long outage of the API
// server, Kubernetes briefly marks all nodes dead and their pods unready although they work. As with
// Envoy's panic threshold, if most endpoints fail, the checks are probably at fault. It is pure.
package readiness

import (
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/lbagent/internal/delta"
)

// Window is the period within which endpoints that become unready count together.
const Window = 30 * time.Second

// settleDelay is how long later unready endpoints wait for others: EndpointSlices of several Services arrive one
// by one, and recovered pods may all become unready once more.
const settleDelay = 2 * time.Second

// Served counts endpoints that are served although not ready.
type Served struct {
	// Endpoints counts the unready endpoints served, per EndpointSlice, Services their Services.
	Endpoints, Services int
}

// Threshold tracks endpoints that become unready. The zero value is ready to use. It is not safe for
// concurrent use.
type Threshold struct {
	last   []*discoveryv1.EndpointSlice
	known  map[types.NamespacedName]*slice
	losing map[types.NamespacedName]*slice
	// active is true while the threshold is exceeded and for Window after clearedAt, the time at which it no longer
	// was.
	active    bool
	clearedAt time.Time
}

type slice struct {
	present *discoveryv1.EndpointSlice
	ready   int
	// lost maps first addresses of endpoints that became unready without terminating to the time; nil
	// without any.
	lost map[string]time.Time
	// marked caches the copy of present with the endpoints in showing marked ready.
	marked          *discoveryv1.EndpointSlice
	markedAddresses []string
}

// New returns a Threshold that continues from the previous agent's EndpointSlices.
func New(before []*discoveryv1.EndpointSlice) *Threshold {
	t := &Threshold{}
	t.update(before, time.Time{})
	return t
}

// Advance returns the EndpointSlices with unready endpoints to serve marked ready, their counts, and the
// delay until its next call is due, or 0. answers reports whether a node answers probes.
//
// If most endpoints of most Services become unready at once while their nodes answer, they are served until
// they terminate, are removed, or their node stops answering. Once most Services have recovered most of
// their endpoints, the others have Window to follow, and endpoints that become unready meanwhile are served
// for a moment more. A single Service is never a majority.
func (t *Threshold) Advance(
	present []*discoveryv1.EndpointSlice, answers func(node string) bool, now time.Time,
) (_ []*discoveryv1.EndpointSlice, served Served, again time.Duration) {
	t.update(present, now)
	since := t.advance(answers, now)
	if !since.IsZero() {
		again = since.Add(Window).Sub(now)
	}
	if !t.active {
		return present, Served{}, again
	}
	result := slices.Clone(present)
	services := map[types.NamespacedName]bool{}
	isServed := func(since time.Time) bool {
		if t.clearedAt.IsZero() || since.Before(t.clearedAt) {
			return true
		}
		left := since.Add(settleDelay).Sub(now)
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
			result[i] = s.markReady(kept)
			served.Endpoints += len(kept)
			services[serviceOf(object)] = true
		}
	}
	served.Services = len(services)
	return result, served, again
}

// advance updates on and over. It returns the start of the oldest period that must expire, or zero.
func (t *Threshold) advance(answers func(node string) bool, now time.Time) (since time.Time) {
	if !t.clearedAt.IsZero() && now.Sub(t.clearedAt) >= Window {
		t.active, t.clearedAt = false, time.Time{}
	}
	if !t.active {
		since = t.expire(now)
	}
	switch {
	case t.isExceeded(answers):
		t.active, t.clearedAt = true, time.Time{}
		return time.Time{}
	case t.active && t.clearedAt.IsZero():
		t.clearedAt = now
	}
	if t.active {
		return t.clearedAt
	}
	return since
}

func (t *Threshold) update(present []*discoveryv1.EndpointSlice, now time.Time) {
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
		s.update(object, now)
		t.index(name, s)
	}
	for _, object := range went {
		// Otherwise a replacement is known already.
		name := nameOf(object)
		if s := t.known[name]; s != nil && s.present == object {
			delete(t.known, name)
			delete(t.losing, name)
		}
	}
}

func (t *Threshold) index(name types.NamespacedName, s *slice) {
	if len(s.lost) > 0 {
		t.losing[name] = s
	} else {
		delete(t.losing, name)
	}
}

func (s *slice) update(object *discoveryv1.EndpointSlice, now time.Time) {
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
	s.present, s.lost, s.marked, s.markedAddresses = object, lost, nil, nil
}

// expire drops losses older than Window and returns the time of the oldest remaining one.
func (t *Threshold) expire(now time.Time) (oldest time.Time) {
	for name, s := range t.losing {
		for address, since := range s.lost {
			switch {
			case now.Sub(since) >= Window:
				delete(s.lost, address)
			case oldest.IsZero() || since.Before(oldest):
				oldest = since
			}
		}
		t.index(name, s)
	}
	return oldest
}

// isExceeded reports whether most endpoints of most Services became unready while their nodes answer.
func (t *Threshold) isExceeded(answers func(node string) bool) bool {
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

// markReady returns a copy with the endpoints marked ready, cached while the input is the same.
func (s *slice) markReady(addresses []string) *discoveryv1.EndpointSlice {
	if s.marked != nil && slices.Equal(s.markedAddresses, addresses) {
		return s.marked
	}
	s.marked, s.markedAddresses = s.present.DeepCopy(), addresses
	for i := range s.marked.Endpoints {
		e := &s.marked.Endpoints[i]
		if !isReady(e) && slices.Contains(addresses, addressOf(e)) {
			yes := true
			e.Conditions.Ready, e.Conditions.Serving = &yes, &yes
		}
	}
	return s.marked
}

// isReady treats nil as true (EndpointConditions, discovery.k8s.io/v1).
func isReady(e *discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

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
