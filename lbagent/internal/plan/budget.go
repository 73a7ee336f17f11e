// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// budget is how the rows of node tables are shared out. Service ports that send packets to other
// nodes come first. Those of policy Local have what they leave, in the order of their frontends, up
// to the first one that finds no room.
type budget struct {
	// spreads is how many rows the first have, with the tables of all zones.
	spreads int
	// locals are the others, in their order.
	locals []local
	// end is the first of them without room.
	end end
}

// local is a recipe of Service ports of policy Local.
type local struct {
	// at is the first frontend, by which its turn comes.
	at   forwarding.FrontendKey
	rows int
}

func compareLocal(l local, at forwarding.FrontendKey) int { return l.at.Compare(at) }

// end is a place among the frontends; the zero value is behind all of them.
type end struct {
	at forwarding.FrontendKey
	is bool
}

// isBehind reports whether a frontend comes before the end.
func (e end) isBehind(at forwarding.FrontendKey) bool { return !e.is || at.Compare(e.at) < 0 }

// newBudget returns the budget of all Services, of so many rows.
func newBudget(services map[model.ServiceName]*service, rows int) *budget {
	b := &budget{}
	for _, s := range services {
		b.spreads += s.spreads
		b.locals = append(b.locals, s.locals...)
	}
	slices.SortFunc(b.locals, func(a, b local) int { return a.at.Compare(b.at) })
	b.setEnd(rows)
	return b
}

// replace takes Services in place of others.
func (b *budget) replace(previous, services map[model.ServiceName]*service, rows int) {
	for name, s := range previous {
		b.spreads -= s.spreads
		if next := services[name]; next != nil && slices.Equal(s.locals, next.locals) {
			continue
		}
		for _, l := range s.locals {
			if place, found := slices.BinarySearchFunc(b.locals, l.at, compareLocal); found {
				b.locals = slices.Delete(b.locals, place, place+1)
			}
		}
	}
	for name, s := range services {
		b.spreads += s.spreads
		if last := previous[name]; last != nil && slices.Equal(s.locals, last.locals) {
			continue
		}
		for _, l := range s.locals {
			place, _ := slices.BinarySearchFunc(b.locals, l.at, compareLocal)
			b.locals = slices.Insert(b.locals, place, l)
		}
	}
	b.setEnd(rows)
}

func (b *budget) setEnd(rows int) {
	left := forLocal(rows) - b.spreads
	b.end = end{}
	for _, l := range b.locals {
		if left < l.rows {
			b.end = end{l.at, true}
			return
		}
		left -= l.rows
	}
}

// moves reports whether a recipe of other Services than these has room, and had none before, or the
// other way round.
func (b *budget) moves(before end, services map[model.ServiceName]*service) bool {
	if before == b.end {
		return false
	}
	own := map[forwarding.FrontendKey]bool{}
	for _, s := range services {
		for _, l := range s.locals {
			own[l.at] = true
		}
	}
	return slices.ContainsFunc(b.locals, func(l local) bool {
		return before.isBehind(l.at) != b.end.isBehind(l.at) && !own[l.at]
	})
}
