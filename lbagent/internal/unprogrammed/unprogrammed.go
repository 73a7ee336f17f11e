// SPDX-License-Identifier: Apache-2.0

// Package unprogrammed withholds endpoints from new flows if their node's agent was silent when they
// appeared and therefore cannot have programmed them. It is pure.
package unprogrammed

import (
	"maps"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/lbagent/internal/delta"
)

// margin is the longest time from an agent's last pass until other nodes know that it is silent: four
// seconds without a heartbeat, two between probes in large clusters, and a pass.
const margin = 10 * time.Second

type service struct {
	types.NamespacedName
	family discoveryv1.AddressType
}

// endpoint belongs to one Service, because pods of other Services may share its address (hostNetwork).
type endpoint struct {
	service       service
	node, address string
}

// A Tracker records when endpoints became ready. It is not safe for concurrent use.
type Tracker struct {
	// last is the input of the previous call, slices the same by Service; nil before the first call.
	last     []*discoveryv1.EndpointSlice
	slices   map[service][]*discoveryv1.EndpointSlice
	appeared map[endpoint]time.Time
	// left maps programmed endpoints to the time when they ceased to be ready. A silent agent has not removed
	// them.
	left     map[endpoint]time.Time
	filtered map[*discoveryv1.EndpointSlice]filtered
}

type filtered struct {
	copy     *discoveryv1.EndpointSlice
	withheld []int
}

// New returns a Tracker that treats the endpoints of before, or of the first Advance if nil, as programmed.
func New(before []*discoveryv1.EndpointSlice) *Tracker {
	t := &Tracker{appeared: map[endpoint]time.Time{}, left: map[endpoint]time.Time{}}
	if before != nil {
		t.take(before, time.Time{})
	}
	return t
}

// Advance returns the EndpointSlices with endpoints marked unready that appeared while their node's agent
// was silent. silent maps these nodes to the time since when. An endpoint stays ready if its Service has no
// other on a node that is not down.
func (t *Tracker) Advance(
	present []*discoveryv1.EndpointSlice, silent map[string]time.Time, down map[string]bool, now time.Time,
) []*discoveryv1.EndpointSlice {
	t.forget(silent, now)
	t.take(present, now)
	if !t.withholds(silent) {
		t.filtered = nil
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
			case t.isWithheld(slice, e, silent):
				withheld[i] = append(withheld[i], j)
			case e.NodeName == nil || !down[*e.NodeName]:
				served[serviceOf(slice)] = true
			}
		}
	}
	result := slices.Clone(present)
	next := map[*discoveryv1.EndpointSlice]filtered{}
	for i, indexes := range withheld {
		if slice := present[i]; served[serviceOf(slice)] {
			next[slice] = t.show(slice, indexes)
			result[i] = next[slice].copy
		}
	}
	t.filtered = next
	return result
}

// forget drops times before the possible begin of a silence.
func (t *Tracker) forget(silent map[string]time.Time, now time.Time) {
	maps.DeleteFunc(t.appeared, func(e endpoint, at time.Time) bool {
		since, isSilent := silent[e.node]
		if !isSilent {
			since = now
		}
		return at.Before(since.Add(-margin))
	})
	maps.DeleteFunc(t.left, func(e endpoint, at time.Time) bool {
		since, isSilent := silent[e.node]
		if !isSilent {
			since = now.Add(-margin)
		}
		return at.Before(since)
	})
}

func (t *Tracker) take(present []*discoveryv1.EndpointSlice, now time.Time) {
	isFirst := t.slices == nil
	if isFirst {
		t.slices = map[service][]*discoveryv1.EndpointSlice{}
	}
	came, went := delta.Between(t.last, present)
	t.last = present
	before := map[service]map[endpoint]bool{}
	for _, slice := range slices.Concat(came, went) {
		if s := serviceOf(slice); before[s] == nil {
			before[s] = readyIn(t.slices[s])
		}
	}
	for _, slice := range went {
		s := serviceOf(slice)
		t.slices[s] = slices.DeleteFunc(t.slices[s], func(other *discoveryv1.EndpointSlice) bool { return other == slice })
	}
	for _, slice := range came {
		t.slices[serviceOf(slice)] = append(t.slices[serviceOf(slice)], slice)
	}
	for s := range before {
		if len(t.slices[s]) == 0 {
			delete(t.slices, s)
		}
		if !isFirst {
			t.compare(before[s], readyIn(t.slices[s]), now)
		}
	}
}

// compare records the differences between a Service's ready endpoints before and after.
func (t *Tracker) compare(before, after map[endpoint]bool, now time.Time) {
	for e := range after {
		if before[e] {
			continue
		}
		if _, isProgrammed := t.left[e]; !isProgrammed {
			t.appeared[e] = now
		}
		delete(t.left, e)
	}
	for e := range before {
		if after[e] {
			continue
		}
		if _, isNew := t.appeared[e]; !isNew {
			t.left[e] = now
		}
		delete(t.appeared, e)
	}
}

// readyIn returns the ready endpoints of EndpointSlices.
func readyIn(list []*discoveryv1.EndpointSlice) map[endpoint]bool {
	ready := map[endpoint]bool{}
	for _, slice := range list {
		for i := range slice.Endpoints {
			if isReady(&slice.Endpoints[i]) {
				ready[endpointOf(slice, &slice.Endpoints[i])] = true
			}
		}
	}
	return ready
}

// withholds reports whether any recorded endpoint is on a silent node.
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

func (t *Tracker) isWithheld(slice *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint, silent map[string]time.Time) bool {
	if e.NodeName == nil {
		return false
	}
	if _, isSilent := silent[*e.NodeName]; !isSilent {
		return false
	}
	_, appeared := t.appeared[endpointOf(slice, e)]
	return appeared
}

// show returns a copy with the endpoints at indexes marked unready, reusing the previous copy if equal.
func (t *Tracker) show(slice *discoveryv1.EndpointSlice, indexes []int) filtered {
	if previous, found := t.filtered[slice]; found && slices.Equal(previous.withheld, indexes) {
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
	return filtered{&changed, indexes}
}

func endpointOf(slice *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint) endpoint {
	of := endpoint{service: serviceOf(slice)}
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
