// SPDX-License-Identifier: Apache-2.0

// Package retention retains endpoints that left their EndpointSlices without terminating, for example after
// a change of the Service's selector, because their pods may still serve established connections. It is
// pure.
package retention

import (
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/lbagent/internal/delta"
)

// Local addresses are checked first after minCheckInterval, then at intervals of half of the endpoint's age, at
// most maxCheckInterval.
const (
	minCheckInterval = time.Second
	maxCheckInterval = 30 * time.Second
)

// Limits bound the retained endpoints.
type Limits struct {
	Timeout   time.Duration
	Endpoints int
}

// Cluster is the state outside of EndpointSlices.
type Cluster struct {
	IsServed func(service types.NamespacedName) bool
	Node     string
	// IsGone reports whether no local pod has the address. It must be true twice in a row.
	IsGone func(address string) bool
}

// Retainer retains endpoints. It is not safe for concurrent use.
type Retainer struct {
	limits    Limits
	last      []*discoveryv1.EndpointSlice
	endpoints map[string][]*endpoint
	count     int
	evicted   int
	due       time.Time
	// slicesByGroup are the EndpointSlices of retained endpoints, result the last result of Advance.
	slicesByGroup map[group]*discoveryv1.EndpointSlice
	result        []*discoveryv1.EndpointSlice
}

type endpoint struct {
	service types.NamespacedName
	family  discoveryv1.AddressType
	address string
	ports   []discoveryv1.EndpointPort
	node    *string
	// since is when it left its EndpointSlice, check when its address is checked next; zero on other nodes.
	since, check time.Time
	isMissing    bool
	// listed maps EndpointSlices that listed the address already before to their Services.
	listed map[types.NamespacedName]types.NamespacedName
}

// New returns a Retainer that continues from the previous agent's EndpointSlices.
func New(previous []*discoveryv1.EndpointSlice, limits Limits) *Retainer {
	r := &Retainer{
		limits: limits, last: Listed(previous), endpoints: map[string][]*endpoint{},
		slicesByGroup: map[group]*discoveryv1.EndpointSlice{},
	}
	if limits.Timeout > 0 {
		for _, slice := range previous[len(r.last):] {
			r.restore(slice)
		}
		r.prune(r.endpoints)
		for _, endpoints := range r.endpoints {
			r.count += countPorts(endpoints)
		}
	}
	return r
}

// Counts are the numbers of retained and evicted endpoints.
type Counts struct{ Retained, Evicted int }

// Counts returns the counts after the last Advance.
func (r *Retainer) Counts() Counts { return Counts{r.count, r.evicted} }

// Advance returns the given EndpointSlices followed by those of retained endpoints, which are neither ready
// nor serving, and the delay until its next call is due, or 0.
//
// An endpoint is retained until its Service lists it again, another Service starts to list its address with
// one of its ports, no pod of its node has the address, or the timeout expires.
func (r *Retainer) Advance(
	present []*discoveryv1.EndpointSlice, cluster Cluster, now time.Time,
) (result []*discoveryv1.EndpointSlice, again time.Duration) {
	if r.limits.Timeout <= 0 {
		return present, 0
	}
	isSame := r.result != nil && delta.IsSame(r.last, present)
	if changed := r.update(present, cluster, now); changed || !isSame {
		r.updateSlices()
		r.result = present
		if r.count > 0 {
			r.result = append(slices.Clip(present), r.slices()...)
		}
	}
	if r.setDue(); r.due.IsZero() {
		return r.result, 0
	}
	return r.result, max(r.due.Sub(now), time.Millisecond)
}

func (r *Retainer) update(present []*discoveryv1.EndpointSlice, cluster Cluster, now time.Time) (changed bool) {
	came, went := delta.Between(r.last, present)
	r.last = present
	if !now.Before(r.due) {
		changed = r.expire(cluster, now)
	}
	if len(came)+len(went) > 0 {
		changed = r.release(came, went) || changed
		changed = r.retain(came, went, cluster.IsServed, now) || changed
	}
	return r.evict() || changed
}

func (r *Retainer) all() []*endpoint {
	all := make([]*endpoint, 0, r.count)
	for _, endpoints := range r.endpoints {
		all = append(all, endpoints...)
	}
	slices.SortFunc(all, (*endpoint).compare)
	return all
}

func (r *Retainer) setDue() {
	r.due = time.Time{}
	for _, endpoints := range r.endpoints {
		for _, e := range endpoints {
			next := e.since.Add(r.limits.Timeout)
			if !e.check.IsZero() && e.check.Before(next) {
				next = e.check
			}
			if r.due.IsZero() || next.Before(r.due) {
				r.due = next
			}
		}
	}
}

func (r *Retainer) drop(address string, match func(*endpoint) bool) bool {
	before, count := len(r.endpoints[address]), countPorts(r.endpoints[address])
	after := slices.DeleteFunc(r.endpoints[address], match)
	if len(after) == 0 {
		delete(r.endpoints, address)
	} else {
		r.endpoints[address] = after
	}
	r.count -= count - countPorts(after)
	return len(after) < before
}

// countPorts returns the number of pairs of address and port, each of which takes an entry in the map of
// endpoints on its node.
func countPorts(endpoints []*endpoint) (count int) {
	for _, e := range endpoints {
		count += len(e.ports)
	}
	return count
}

func (r *Retainer) expire(cluster Cluster, now time.Time) (changed bool) {
	for address := range maps.Clone(r.endpoints) {
		changed = r.drop(address, func(e *endpoint) bool {
			age := now.Sub(e.since)
			if age >= r.limits.Timeout {
				return true
			}
			if e.node == nil || *e.node != cluster.Node {
				e.check = time.Time{}
				return false
			}
			if now.Before(e.check) {
				return false
			}
			wasMissing := e.isMissing
			if e.isMissing = cluster.IsGone(address); e.isMissing {
				e.check = now.Add(minCheckInterval)
			} else {
				e.check = now.Add(min(max(age/2, minCheckInterval), maxCheckInterval))
			}
			return wasMissing && e.isMissing
		}) || changed
	}
	return changed
}

// evict drops endpoints above the limit: the oldest of the namespace with the most.
func (r *Retainer) evict() bool {
	if r.count <= r.limits.Endpoints {
		return false
	}
	byNamespace := map[string][]*endpoint{}
	counts := map[string]int{}
	for _, e := range r.all() {
		byNamespace[e.service.Namespace] = append(byNamespace[e.service.Namespace], e)
		counts[e.service.Namespace] += len(e.ports)
	}
	share := fairShare(slices.Collect(maps.Values(counts)), r.limits.Endpoints)
	for _, most := range []int{share + 1, share} {
		for _, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
			for counts[namespace] > most && r.count > r.limits.Endpoints {
				oldest := byNamespace[namespace][0]
				byNamespace[namespace] = byNamespace[namespace][1:]
				counts[namespace] -= len(oldest.ports)
				r.evicted += len(oldest.ports)
				r.drop(oldest.address, func(e *endpoint) bool { return e == oldest })
			}
		}
	}
	return true
}

// fairShare returns the largest share so that the sum of the counts, each limited to the share, is within limit.
func fairShare(counts []int, limit int) int {
	return sort.Search(limit, func(share int) bool {
		total := 0
		for _, count := range counts {
			total += min(count, share+1)
		}
		return total > limit
	})
}

func (e *endpoint) compare(other *endpoint) int {
	if order := e.since.Compare(other.since); order != 0 {
		return order
	}
	if order := strings.Compare(e.service.String(), other.service.String()); order != 0 {
		return order
	}
	return strings.Compare(e.address, other.address)
}
