// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// unplaced holds the entries that did not fit. It allows partial plans for all other tenants while one
// tenant's frontends exceed the capacity.
type unplaced struct {
	problems []Problem
	// fits is true if everything fits except tables limited by the budget, which is recomputed in each
	// plan.
	fits bool
	// stays is true if all missing entries wait for full maps. Then no partial plan can add one of them
	// while the maps hold all of removed.
	stays   bool
	removed forwarding.Entries
}

// unplaced returns the missing entries of the builder together with the problems of others. entries are the
// entries in which the plan may differ from the maps; nil stands for all.
func (b *builder) unplaced(entries *forwarding.Entries, others []Problem) unplaced {
	problems := slices.Concat(others, b.allProblems())
	slices.SortStableFunc(problems, compareProblems)
	lacks := func(p Problem) bool { return !p.yields }
	other := func(p Problem) bool { return lacks(p) && !waitsForMap(p.Full) }
	l := unplaced{problems: problems, fits: !b.waits && !slices.ContainsFunc(problems, lacks)}
	l.stays = !b.waits && !l.fits && !slices.ContainsFunc(problems, other)
	if l.stays {
		l.removed = b.removed(entries)
	}
	return l
}

// waitsForMap reports whether a frontend without that capacity waits only for removals from a map. Node
// tables and source ranges depend on decisions about all frontends.
func waitsForMap(full forwarding.Capacity) bool {
	return full == forwarding.Frontends || full == forwarding.EndpointTables || full == forwarding.Endpoints
}

func (b *builder) removed(entries *forwarding.Entries) forwarding.Entries {
	if entries == nil {
		entries = &forwarding.Entries{
			Frontends:      slices.Collect(maps.Keys(b.have.Frontends)),
			EndpointTables: slices.Collect(maps.Keys(b.have.EndpointTables)),
			Endpoints:      slices.Collect(maps.Keys(b.have.Endpoints)),
		}
	}
	return forwarding.Entries{
		Frontends:      onlyIn(b.have.Frontends, b.want.Frontends, entries.Frontends),
		EndpointTables: onlyIn(b.have.EndpointTables, b.want.EndpointTables, entries.EndpointTables),
		Endpoints:      onlyIn(b.have.Endpoints, b.want.Endpoints, entries.Endpoints),
	}
}

func onlyIn[K comparable, V any](have, want map[K]V, keys []K) (only []K) {
	for _, key := range keys {
		_, had := have[key]
		if _, stays := want[key]; had && !stays {
			only = append(only, key)
		}
	}
	return only
}

func (l *unplaced) waits(have *forwarding.State) bool {
	return l.stays && hasAll(have.Frontends, l.removed.Frontends) &&
		hasAll(have.EndpointTables, l.removed.EndpointTables) && hasAll(have.Endpoints, l.removed.Endpoints)
}

func hasAll[K comparable, V any](have map[K]V, keys []K) bool {
	return !slices.ContainsFunc(keys, func(key K) bool {
		_, found := have[key]
		return !found
	})
}

func (l unplaced) without(services map[model.ObjectReference]struct{}) []Problem {
	return slices.DeleteFunc(slices.Clone(l.problems), func(p Problem) bool {
		_, found := services[p.Object]
		return found
	})
}

// isUnplacedEqual reports whether a partial plan agrees with a full plan on the entries that do not fit. Unless
// everything fits, this requires that no new frontend of the part gets room, since otherwise the choice
// depends on all frontends.
func (p *Planner) isUnplacedEqual(have MapContent, part *part) bool {
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

func (p *Planner) isFull(have MapContent, f *model.Frontend) bool {
	if len(have.Frontends) >= p.last.limits.Frontends {
		return true
	}
	port := p.placed[portOf(f)]
	return len(f.Endpoints) > 0 && len(have.EndpointTables) >= p.last.limits.EndpointTables && (port == nil || !port.placed)
}
