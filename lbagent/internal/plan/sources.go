// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// sourceSets gives lists of prefixes their sets. A list is known by its content:
// Services with equal lists share a set, and a list that has changed is a new
// set, so that a frontend goes from the whole old one to the whole new one.
type sourceSets struct {
	limit int
	// entries are the prefixes of each family in the maps before removals.
	entries map[bool]int
	// written is what the maps hold, named the sets by the list that they are
	// wholly, owners the lists that sets were given to.
	written map[forwarding.SourceSet][]netip.Prefix
	named   map[string]forwarding.SourceSet
	owners  map[forwarding.SourceSet]string
	// taken are the prefixes of the lists that sets were given to.
	taken map[sourceUser]int
}

// sourceUser is a namespace in one address family.
type sourceUser struct {
	namespace string
	ipv4      bool
}

func newSourceSets(have *forwarding.State, limit int) *sourceSets {
	s := &sourceSets{
		limit: limit, entries: map[bool]int{}, written: map[forwarding.SourceSet][]netip.Prefix{},
		named: map[string]forwarding.SourceSet{}, owners: map[forwarding.SourceSet]string{},
		taken: map[sourceUser]int{},
	}
	for source := range have.SourceRanges {
		if !source.Set.OfFrontends() {
			s.entries[source.Prefix.Addr().Is4()]++
			continue
		}
		s.written[source.Set] = append(s.written[source.Set], source.Prefix)
		s.entries[source.Prefix.Addr().Is4()]++
	}
	for set, prefixes := range s.written {
		slices.SortFunc(prefixes, netip.Prefix.Compare)
		name := fmt.Sprint(prefixes)
		if first, found := s.named[name]; !found || set < first {
			s.named[name] = set
		}
	}
	return s
}

// find returns the set that a list has. previous is the one that the list was given last. It stays,
// also where another set that is to go has become equal. When writing it failed half way, it is
// completed.
func (s *sourceSets) find(name string, prefixes []netip.Prefix, previous forwarding.SourceSet) (forwarding.SourceSet, bool) {
	first := s.named[name]
	if slices.Equal(s.written[previous], prefixes) {
		first = previous
	}
	for _, set := range []forwarding.SourceSet{first, previous} {
		owner, given := s.owners[set]
		if set == 0 || given && owner != name {
			continue
		}
		if given || isSubset(s.written[set], prefixes) {
			return set, true
		}
	}
	return 0, false
}

// isSubset compares sorted lists.
func isSubset(part, whole []netip.Prefix) bool {
	for _, prefix := range part {
		if _, found := slices.BinarySearchFunc(whole, prefix, netip.Prefix.Compare); !found {
			return false
		}
	}
	return true
}

// room reports whether the prefixes that the set lacks fit. One namespace gets half of the room:
// in the other one the lists of others can change, for which both lists need room.
func (s *sourceSets) room(set forwarding.SourceSet, prefixes []netip.Prefix, namespace string) bool {
	user := sourceUser{namespace, prefixes[0].Addr().Is4()}
	missing := len(prefixes) - len(s.written[set])
	return missing == 0 || s.entries[user.ipv4]+missing <= s.limit && s.taken[user]+len(prefixes) <= (s.limit+1)/2
}

// sourceSet returns the set of those that a frontend admits; false where there
// is no room for it.
func (d *draft) sourceSet(frontend *model.Frontend) (forwarding.SourceSet, bool) {
	if !frontend.Restricted {
		return 0, true
	}
	if d.keepsSources {
		return d.have.Frontends[frontend.Key].Ranges, true
	}
	prefixes := frontend.Sources
	if len(prefixes) == 0 {
		return forwarding.Nobody, true
	}
	name := fmt.Sprint(prefixes)
	set, found := d.sources.find(name, prefixes, d.planner.sourceSets[name])
	if !d.sources.room(set, prefixes, frontend.Service.Namespace) {
		return 0, false
	}
	if !found {
		next, free := d.planner.sourceSetIDs.next(d.limits.SourceRanges, func(number uint32) bool {
			id := forwarding.SourceSet(number)
			return d.sources.owners[id] != "" || len(d.sources.written[id]) > 0
		})
		if !free {
			return 0, false
		}
		set = forwarding.SourceSet(next)
	}
	if d.sources.owners[set] == "" {
		d.sources.take(set, name, prefixes)
		d.sources.taken[sourceUser{frontend.Service.Namespace, prefixes[0].Addr().Is4()}] += len(prefixes)
		for _, prefix := range prefixes {
			d.want.SourceRanges[forwarding.SourceRange{Set: set, Prefix: prefix}] = struct{}{}
		}
	}
	return set, true
}

// take gives the set to a list.
func (s *sourceSets) take(set forwarding.SourceSet, name string, prefixes []netip.Prefix) {
	s.entries[prefixes[0].Addr().Is4()] += len(prefixes) - len(s.written[set])
	s.written[set] = prefixes
	s.owners[set], s.named[name] = name, set
}

// setPools plans the pools' addresses, in place of those that lists of sources
// could have: without them a router gets packets back.
func (d *draft) setPools() {
	for _, prefix := range d.model.Pools {
		if !d.setDestination(forwarding.SourceRange{Set: forwarding.Pools, Prefix: prefix}) {
			d.full(model.ObjectReference{Kind: "VIPPool"}, "addresses of pools", forwarding.SourceRanges)
			return
		}
	}
}

// setAggregates plans the aggregates. One without room is not announced.
func (d *draft) setAggregates() {
	for _, aggregate := range d.model.Aggregates {
		if !d.setDestination(forwarding.SourceRange{Set: forwarding.Aggregates, Prefix: aggregate.Prefix}) {
			d.full(model.ObjectReference{Kind: "VIPAdvertisement", Name: aggregate.Advertisement},
				fmt.Sprintf("the aggregate %s, in whose place each VIP is announced", aggregate.Prefix), forwarding.SourceRanges)
		}
	}
}

// setDestination plans a prefix of addresses that VIPs may be; false where there is no room.
func (d *draft) setDestination(source forwarding.SourceRange) bool {
	if _, written := d.have.SourceRanges[source]; !written {
		if d.sources.entries[source.Prefix.Addr().Is4()] >= d.limits.SourceRanges {
			return false
		}
		d.sources.entries[source.Prefix.Addr().Is4()]++
	}
	d.want.SourceRanges[source] = struct{}{}
	return true
}
