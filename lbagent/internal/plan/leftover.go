// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// leftover is what a plan had no room for. One tenant can have more frontends than a node has room
// for: the changes of all others are to be planned in part all the same.
type leftover struct {
	problems []Problem
	// fits is true where there was room for everything but what yields: each plan has the budget.
	fits bool
	// stays is true where nothing of what is left over could get room by a plan in part, for it waits
	// for maps that are full, as long as those hold all that leaves.
	stays  bool
	leaves forwarding.Entries
}

// leftOver returns what a plan has no room for, beside what others have none for. Entries are those in
// which it may differ from what the maps hold; nil stands for all.
func (d *draft) leftOver(entries *forwarding.Entries, others []Problem) leftover {
	problems := slices.Concat(others, d.allProblems())
	slices.SortStableFunc(problems, compareProblems)
	lacks := func(p Problem) bool { return !p.yields }
	other := func(p Problem) bool { return lacks(p) && !waitsForMap(p.Full) }
	l := leftover{problems: problems, fits: !d.waits && !slices.ContainsFunc(problems, lacks)}
	l.stays = !d.waits && !l.fits && !slices.ContainsFunc(problems, other)
	if l.stays {
		l.leaves = d.leaving(entries)
	}
	return l
}

// waitsForMap reports whether a frontend without room in a map waits for others to leave it, and for
// nothing else. Which frontends have node tables, and whose source ranges fit, is decided together.
func waitsForMap(full forwarding.Capacity) bool {
	return full == forwarding.Frontends || full == forwarding.EndpointTables || full == forwarding.Endpoints
}

// leaving are the entries of these maps that are not wanted any more.
func (d *draft) leaving(entries *forwarding.Entries) forwarding.Entries {
	if entries == nil {
		entries = &forwarding.Entries{
			Frontends:      slices.Collect(maps.Keys(d.have.Frontends)),
			EndpointTables: slices.Collect(maps.Keys(d.have.EndpointTables)),
			Endpoints:      slices.Collect(maps.Keys(d.have.Endpoints)),
		}
	}
	return forwarding.Entries{
		Frontends:      onlyIn(d.have.Frontends, d.want.Frontends, entries.Frontends),
		EndpointTables: onlyIn(d.have.EndpointTables, d.want.EndpointTables, entries.EndpointTables),
		Endpoints:      onlyIn(d.have.Endpoints, d.want.Endpoints, entries.Endpoints),
	}
}

// onlyIn returns those keys that one map has and the other one has not.
func onlyIn[K comparable, V any](have, want map[K]V, keys []K) (only []K) {
	for _, key := range keys {
		_, had := have[key]
		if _, stays := want[key]; had && !stays {
			only = append(only, key)
		}
	}
	return only
}

// waits reports whether what is left over has no room in the maps yet.
func (l *leftover) waits(have *forwarding.State) bool {
	return l.stays && hasAll(have.Frontends, l.leaves.Frontends) &&
		hasAll(have.EndpointTables, l.leaves.EndpointTables) && hasAll(have.Endpoints, l.leaves.Endpoints)
}

func hasAll[K comparable, V any](have map[K]V, keys []K) bool {
	return !slices.ContainsFunc(keys, func(key K) bool {
		_, found := have[key]
		return !found
	})
}

// without are the problems that are not of those Services.
func (l leftover) without(services map[model.ObjectReference]struct{}) []Problem {
	return slices.DeleteFunc(slices.Clone(l.problems), func(p Problem) bool {
		_, found := services[p.Object]
		return found
	})
}

// leavesOut reports whether no frontend of the part that is new to the maps gets room, where others
// have none. Else which of them gets it depends on all.
func (p *Planner) leavesOut(have Held, part *part) bool {
	if p.last.fits {
		return true
	}
	for _, f := range part.changed.Frontends {
		if _, programmed := have.Frontends[f.Key]; !programmed && !p.isFull(have, f) {
			return false
		}
	}
	return !slices.ContainsFunc(part.changed.VIPs, func(vip model.VIP) bool {
		_, programmed := have.VIPs[vip.Address]
		return !programmed && vip.Occupant == ""
	})
}

// isFull reports whether a frontend that is new finds no room, whatever else changes.
func (p *Planner) isFull(have Held, f *model.Frontend) bool {
	if len(have.Frontends) >= p.last.limits.Frontends {
		return true
	}
	port := p.placed[portOf(f)]
	return len(f.Endpoints) > 0 && len(have.EndpointTables) >= p.last.limits.EndpointTables && (port == nil || !port.placed)
}
