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
	// last is the input of the previous call, known the same by name; nil before the first call.
	last     []*discoveryv1.EndpointSlice
	known    map[types.NamespacedName]*discoveryv1.EndpointSlice
	appeared map[endpoint]time.Time
	shown    map[*discoveryv1.EndpointSlice]shown
}

type shown struct {
	copy     *discoveryv1.EndpointSlice
	withheld []int
}

// New returns a Tracker that treats the endpoints of before, or of the first Advance if nil, as programmed.
func New(before []*discoveryv1.EndpointSlice) *Tracker {
	t := &Tracker{appeared: map[endpoint]time.Time{}}
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
			case t.isWithheld(slice, e, silent):
				withheld[i] = append(withheld[i], j)
			case e.NodeName == nil || !down[*e.NodeName]:
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

// add records endpoints that are ready in slice but not in the previous version, which may be nil.
func (t *Tracker) add(previous, slice *discoveryv1.EndpointSlice, now time.Time) {
	before := map[endpoint]bool{}
	if previous != nil {
		for i := range previous.Endpoints {
			before[endpointOf(slice, &previous.Endpoints[i])] = isReady(&previous.Endpoints[i])
		}
	}
	for i := range slice.Endpoints {
		if e := endpointOf(slice, &slice.Endpoints[i]); isReady(&slice.Endpoints[i]) && !before[e] {
			t.appeared[e] = now
		}
	}
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
