// SPDX-License-Identifier: Apache-2.0

// Package unprogrammed withholds endpoints from new flows if the agent of their node cannot have
// programmed them, because the agent was silent when they appeared. It is pure.
package unprogrammed

import (
	"maps"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/lbagent/internal/delta"
)

// margin is the longest time from the last pass of an agent until other nodes know that it is silent:
// four seconds without a beat, two between probes of a large cluster, and the duration of a pass.
const margin = 10 * time.Second

// endpoint is the first address of an endpoint on a node.
type endpoint struct{ node, address string }

// service is a Service with the address type of its EndpointSlices.
type service struct {
	types.NamespacedName
	family discoveryv1.AddressType
}

// A Tracker records when endpoints appeared: when they became ready. It is not safe for concurrent use.
type Tracker struct {
	// last are the EndpointSlices of the previous call, known the same by name; nil before the first.
	last  []*discoveryv1.EndpointSlice
	known map[types.NamespacedName]*discoveryv1.EndpointSlice
	// appeared are the times of endpoints that appeared lately, or on a node whose agent is silent.
	appeared map[endpoint]time.Time
	// shown are the changed copies of EndpointSlices in the previous result.
	shown map[*discoveryv1.EndpointSlice]shown
}

// shown is a copy of an EndpointSlice. Its endpoints with the indexes withheld are not ready.
type shown struct {
	copy     *discoveryv1.EndpointSlice
	withheld []int
}

// New returns a Tracker that takes the endpoints of before for programmed. If before is nil, it takes the
// endpoints of the first call of Advance.
func New(before []*discoveryv1.EndpointSlice) *Tracker {
	t := &Tracker{appeared: map[endpoint]time.Time{}}
	if before != nil {
		t.take(before, time.Time{})
	}
	return t
}

// Advance returns the EndpointSlices with the endpoints as not ready that appeared on a node while its
// agent was silent. silent are these nodes by name, with the times since when. An endpoint stays ready if
// its Service has no other one: then its node decides.
func (t *Tracker) Advance(present []*discoveryv1.EndpointSlice, silent map[string]time.Time, now time.Time) []*discoveryv1.EndpointSlice {
	t.take(present, now)
	maps.DeleteFunc(t.appeared, func(e endpoint, at time.Time) bool {
		since, isSilent := silent[e.node]
		if !isSilent {
			since = now
		}
		return at.Before(since.Add(-margin))
	})
	if !t.withholds(silent) {
		t.shown = nil
		return present
	}
	served := map[service]bool{}
	withheld := map[int][]int{}
	for i, slice := range present {
		if slice == nil {
			continue
		}
		for j := range slice.Endpoints {
			switch e := &slice.Endpoints[j]; {
			case !isReady(e):
			case t.isWithheld(e, silent):
				withheld[i] = append(withheld[i], j)
			default:
				served[serviceOf(slice)] = true
			}
		}
	}
	result := slices.Clone(present)
	next := map[*discoveryv1.EndpointSlice]shown{}
	for i, indexes := range withheld {
		if slice := present[i]; served[serviceOf(slice)] {
			next[slice] = t.show(slice, indexes)
			result[i] = next[slice].copy
		}
	}
	t.shown = next
	return result
}

// take records the endpoints that appeared since the previous call.
func (t *Tracker) take(present []*discoveryv1.EndpointSlice, now time.Time) {
	isFirst := t.known == nil
	if isFirst {
		t.known = make(map[types.NamespacedName]*discoveryv1.EndpointSlice, len(present))
	}
	came, went := delta.Between(t.last, present)
	t.last = present
	for _, slice := range came {
		name := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}
		if !isFirst {
			t.add(t.known[name], slice, now)
		}
		t.known[name] = slice
	}
	for _, slice := range went {
		name := types.NamespacedName{Namespace: slice.Namespace, Name: slice.Name}
		if t.known[name] == slice {
			delete(t.known, name)
		}
	}
}

// add records the endpoints that are ready in a new version of an EndpointSlice and were not ready in the
// previous version, which may be nil.
func (t *Tracker) add(previous, slice *discoveryv1.EndpointSlice, now time.Time) {
	before := map[endpoint]bool{}
	if previous != nil {
		for i := range previous.Endpoints {
			before[endpointOf(&previous.Endpoints[i])] = isReady(&previous.Endpoints[i])
		}
	}
	for i := range slice.Endpoints {
		if e := endpointOf(&slice.Endpoints[i]); isReady(&slice.Endpoints[i]) && !before[e] {
			t.appeared[e] = now
		}
	}
}

// withholds reports whether endpoints on silent nodes appeared lately.
func (t *Tracker) withholds(silent map[string]time.Time) bool {
	if len(silent) == 0 {
		return false
	}
	for e := range t.appeared {
		if _, isSilent := silent[e.node]; isSilent {
			return true
		}
	}
	return false
}

func (t *Tracker) isWithheld(e *discoveryv1.Endpoint, silent map[string]time.Time) bool {
	if e.NodeName == nil {
		return false
	}
	if _, isSilent := silent[*e.NodeName]; !isSilent {
		return false
	}
	_, appeared := t.appeared[endpointOf(e)]
	return appeared
}

// show returns a copy of the EndpointSlice with the endpoints at some indexes as not ready. It returns the
// previous copy if that is the same.
func (t *Tracker) show(slice *discoveryv1.EndpointSlice, indexes []int) shown {
	if previous, found := t.shown[slice]; found && slices.Equal(previous.withheld, indexes) {
		return previous
	}
	changed := *slice
	changed.Endpoints = slices.Clone(slice.Endpoints)
	no, yes := false, true
	for _, i := range indexes {
		conditions := &changed.Endpoints[i].Conditions
		conditions.Ready = &no
		if conditions.Serving == nil {
			conditions.Serving = &yes
		}
	}
	return shown{&changed, indexes}
}

func endpointOf(e *discoveryv1.Endpoint) endpoint {
	var of endpoint
	if e.NodeName != nil {
		of.node = *e.NodeName
	}
	if len(e.Addresses) > 0 {
		of.address = e.Addresses[0]
	}
	return of
}

func isReady(e *discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

func serviceOf(slice *discoveryv1.EndpointSlice) service {
	return service{
		types.NamespacedName{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}, slice.AddressType,
	}
}
