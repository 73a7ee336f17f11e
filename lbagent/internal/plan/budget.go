// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// budget divides the rows of node tables. Service ports that forward packets to other nodes come first.
// Ports of policy Local get the remaining rows in frontend order, until one does not fit.
type budget struct {
	// spreads is the number of rows of forwarding ports, including the tables of all zones.
	spreads int
	locals  []local
	end     end
}

type local struct {
	at   forwarding.FrontendKey
	rows int
}

func compareLocal(l local, at forwarding.FrontendKey) int { return l.at.Compare(at) }

// end is a position in the frontend order; the zero value is after all frontends.
type end struct {
	at forwarding.FrontendKey
	is bool
}

func (e end) isAfter(at forwarding.FrontendKey) bool { return !e.is || at.Compare(e.at) < 0 }

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

// changesOthers reports whether the budget grants or revokes room for a table spec outside of these Services.
func (b *budget) changesOthers(before end, services map[model.ServiceName]*service) bool {
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
		return before.isAfter(l.at) != b.end.isAfter(l.at) && !own[l.at]
	})
}
