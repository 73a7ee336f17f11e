// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

type newFrontend struct {
	entry
	created time.Time
	rank    int
}

// byPrecedence returns the model's frontends in allocation order: programmed ones by key,
// then new frontends.
func (b *builder) byPrecedence() []entry {
	ordered, newcomers := make([]entry, 0, len(b.entries)), []newFrontend{}
	ranks := map[string]int{}
	vips := b.model.VIPs
	for _, entry := range b.entries {
		if _, found := b.have.Frontends[entry.Key]; found {
			ordered = append(ordered, entry)
			ranks[entry.Service.Namespace]++
			continue
		}
		for len(vips) > 0 && vips[0].Address.Less(entry.Key.VIP) {
			vips = vips[1:]
		}
		next := newFrontend{entry: entry}
		if len(vips) > 0 && vips[0].Address == entry.Key.VIP {
			next.created = vips[0].Created
		}
		newcomers = append(newcomers, next)
	}
	sortNewcomers(newcomers, ranks)
	for _, newcomer := range newcomers {
		ordered = append(ordered, newcomer.entry)
	}
	return ordered
}

// sortNewcomers orders new frontends so that no namespace can exhaust the capacity: the n-th frontends of all
// namespaces come before the next ones, older VIPs first. A node that starts with empty maps then leaves
// out the same frontends as other nodes that added all of them one by one. ranks counts the programmed
// frontends by namespace.
func sortNewcomers(newcomers []newFrontend, ranks map[string]int) {
	byAge := func(a, b newFrontend) int { return cmp.Or(a.created.Compare(b.created), a.Key.Compare(b.Key)) }
	slices.SortFunc(newcomers, byAge)
	for i := range newcomers {
		namespace := newcomers[i].Service.Namespace
		newcomers[i].rank = ranks[namespace]
		ranks[namespace]++
	}
	slices.SortStableFunc(newcomers, func(a, b newFrontend) int { return cmp.Compare(a.rank, b.rank) })
}

// vipsByPrecedence returns the model's VIPs in allocation order: programmed ones, then the
// others by age.
func (b *builder) vipsByPrecedence() []*model.VIP {
	ordered, newcomers := make([]*model.VIP, 0, len(b.model.VIPs)), []*model.VIP{}
	for i := range b.model.VIPs {
		vip := &b.model.VIPs[i]
		if _, found := b.have.VIPs[vip.Address]; found {
			ordered = append(ordered, vip)
		} else {
			newcomers = append(newcomers, vip)
		}
	}
	slices.SortStableFunc(newcomers, func(x, y *model.VIP) int { return x.Created.Compare(y.Created) })
	return append(ordered, newcomers...)
}
