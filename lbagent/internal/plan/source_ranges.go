// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// sourceSets allocates sets to lists of source prefixes. Lists are identified by content: Services with
// equal lists share a set, and a changed list gets a new set, so that a frontend switches atomically from
// one complete list to another.
type sourceSets struct {
	limit int
	// entries counts the prefixes by family (true for IPv4) in the maps before removals.
	entries map[bool]int
	// written is the content of the maps, named the sets by the complete list they hold, owners the list
	// that each set is allocated to.
	written map[forwarding.SourceSet][]netip.Prefix
	named   map[string]forwarding.SourceSet
	owners  map[forwarding.SourceSet]string
	// taken counts the prefixes of allocated sets.
	taken map[sourceUser]int
}

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

// find returns the set of a list. previous is the set that the last plan allocated to it and is preferred
// to another set with the same content. A partially written set is completed.
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

func isSubset(part, whole []netip.Prefix) bool {
	for _, prefix := range part {
		if _, found := slices.BinarySearchFunc(whole, prefix, netip.Prefix.Compare); !found {
			return false
		}
	}
	return true
}

// room reports whether the prefixes missing from the set fit. A namespace gets at most half of the
// capacity, because a changed list needs room for the old and the new set.
func (s *sourceSets) room(set forwarding.SourceSet, prefixes []netip.Prefix, namespace string) bool {
	user := sourceUser{namespace, prefixes[0].Addr().Is4()}
	missing := len(prefixes) - len(s.written[set])
	return missing == 0 || s.entries[user.ipv4]+missing <= s.limit && s.taken[user]+len(prefixes) <= (s.limit+1)/2
}

func (b *builder) sourceSet(frontend *model.Frontend) (forwarding.SourceSet, bool) {
	if !frontend.Restricted {
		return 0, true
	}
	if b.retainsSources {
		return b.have.Frontends[frontend.Key].Ranges, true
	}
	prefixes := frontend.Sources
	if len(prefixes) == 0 {
		return forwarding.NoSources, true
	}
	name := fmt.Sprint(prefixes)
	set, found := b.sources.find(name, prefixes, b.planner.sourceSets[name])
	if !b.sources.room(set, prefixes, frontend.Service.Namespace) {
		return 0, false
	}
	if !found {
		next, free := b.planner.sourceSetIDs.next(b.limits.SourceRanges, func(number uint32) bool {
			id := forwarding.SourceSet(number)
			return b.sources.owners[id] != "" || len(b.sources.written[id]) > 0
		})
		if !free {
			return 0, false
		}
		set = forwarding.SourceSet(next)
	}
	if b.sources.owners[set] == "" {
		b.sources.allocate(set, name, prefixes)
		b.sources.taken[sourceUser{frontend.Service.Namespace, prefixes[0].Addr().Is4()}] += len(prefixes)
		for _, prefix := range prefixes {
			b.want.SourceRanges[forwarding.SourceRange{Set: set, Prefix: prefix}] = struct{}{}
		}
	}
	return set, true
}

func (s *sourceSets) allocate(set forwarding.SourceSet, name string, prefixes []netip.Prefix) {
	s.entries[prefixes[0].Addr().Is4()] += len(prefixes) - len(s.written[set])
	s.written[set] = prefixes
	s.owners[set], s.named[name] = name, set
}

// setPools plans the pools' prefixes before any source lists: without them, packets to unused addresses
// would go back to the router.
func (b *builder) setPools() {
	for _, prefix := range b.model.Pools {
		if !b.setDestination(forwarding.SourceRange{Set: forwarding.Pools, Prefix: prefix}) {
			b.full(model.ObjectReference{Kind: "VIPPool"}, "addresses of pools", forwarding.SourceRanges)
			return
		}
	}
}

func (b *builder) setAggregates() {
	for _, aggregate := range b.model.Aggregates {
		if !b.setDestination(forwarding.SourceRange{Set: forwarding.Aggregates, Prefix: aggregate.Prefix}) {
			b.full(model.ObjectReference{Kind: "VIPAdvertisement", Name: aggregate.Advertisement},
				fmt.Sprintf("the aggregate %s, instead of which each VIP is announced", aggregate.Prefix), forwarding.SourceRanges)
		}
	}
}

func (b *builder) setDestination(source forwarding.SourceRange) bool {
	if _, written := b.have.SourceRanges[source]; !written {
		if b.sources.entries[source.Prefix.Addr().Is4()] >= b.limits.SourceRanges {
			return false
		}
		b.sources.entries[source.Prefix.Addr().Is4()]++
	}
	b.want.SourceRanges[source] = struct{}{}
	return true
}
