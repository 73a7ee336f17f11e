// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// maxPartial is the maximum number of VIPs for an unconditional partial decision.
const maxPartial = 16

// Decider computes the same result as Decide, incrementally: only changed VIPs are decided again, and
// unchanged lists keep their memory. The zero value is ready to use. It is not safe for concurrent use.
type Decider struct {
	model     *model.Model
	node      Node
	routes    Routes
	decisions []Decision
}

// Change is the difference between two passes.
type Change struct {
	// Model is the difference between the models; nil means unknown.
	Model *model.Changes
	// Maps are the entries to change and the entries with a pending removal; nil means unknown. All other
	// entries are programmed as desired.
	Maps *forwarding.Entries
}

// Decide returns the result of the function Decide.
func (d *Decider) Decide(m *model.Model, change Change, node *Node) (Routes, []Decision) {
	vips, part := d.changed(m, change, node)
	if part {
		d.decidePartial(m, vips, node)
	} else {
		d.routes, d.decisions = Decide(m, node)
	}
	d.model, d.node = m, *node
	d.node.Programmed, d.node.Planned, d.node.Announced = nil, nil, nil
	return d.routes, d.decisions
}

// changed returns the VIPs to decide again, or false if all must be decided. Announced matters only for
// VIPs with entries that are not yet programmed and on cut-off nodes.
func (d *Decider) changed(m *model.Model, change Change, node *Node) ([]netip.Addr, bool) {
	if change.Model == nil || change.Maps == nil || change.Model.Since != d.model || !d.canReuse(m, node) {
		return nil, false
	}
	vips := slices.Concat(change.Model.VIPs, change.Maps.VIPs)
	for _, key := range change.Maps.Frontends {
		vips = append(vips, key.VIP)
	}
	vips = slices.AppendSeq(vips, maps.Keys(d.node.Unready))
	vips = slices.AppendSeq(vips, maps.Keys(node.Unready))
	vips = slices.AppendSeq(vips, maps.Keys(d.node.Duplicates))
	vips = slices.AppendSeq(vips, maps.Keys(node.Duplicates))
	slices.SortFunc(vips, netip.Addr.Compare)
	vips = slices.Compact(vips)
	return vips, len(vips) <= max(maxPartial, len(m.VIPs)/8)
}

// canReuse reports whether all inputs shared by the VIPs are unchanged.
func (d *Decider) canReuse(m *model.Model, node *Node) bool {
	last := d.model
	stays := func(m *model.Model, node *Node) bool {
		return node.Phase == Active && !node.Final && !m.CutOff && !slices.ContainsFunc(m.Advertisements, model.Advertisement.Aggregates)
	}
	return stays(m, node) && stays(last, &d.node) && m.Self == last.Self && maps.Equal(node.Unattached, d.node.Unattached) &&
		slices.Equal(m.Peers, last.Peers) && maps.Equal(m.NextHops, last.NextHops) &&
		reflect.DeepEqual(m.Advertisements, last.Advertisements) && d.isElectionUnchanged(m, node)
}

func (d *Decider) isElectionUnchanged(m *model.Model, node *Node) bool {
	last := d.model
	if len(m.L2) == 0 && len(last.L2) == 0 {
		return true
	}
	return slices.Equal(m.Nodes, last.Nodes) && maps.Equal(node.Silent, d.node.Silent) && reflect.DeepEqual(m.L2, last.L2) &&
		reflect.DeepEqual(m.Reach, last.Reach) && reflect.DeepEqual(node.Links, d.node.Links)
}

func (d *Decider) decidePartial(m *model.Model, vips []netip.Addr, node *Node) {
	changes := copyOnWriteList[Decision]{list: d.decisions}
	routes := map[string]*copyOnWriteList[Route]{}
	of := func(peer string) *copyOnWriteList[Route] {
		if routes[peer] == nil {
			routes[peer] = &copyOnWriteList[Route]{list: d.routes[peer]}
		}
		return routes[peer]
	}
	deciding := evaluator{model: m, node: node}
	for _, address := range vips {
		announced := map[string]Route{}
		place, has := slices.BinarySearchFunc(m.VIPs, address, func(vip model.VIP, address netip.Addr) int { return vip.Address.Compare(address) })
		if has {
			vip := &m.VIPs[place]
			decision := deciding.decide(vip, m.FrontendsOf(address), func(target model.Target, route Route, leaving bool) {
				announced[target.Peer.Name] = finished(route, target.Peer, leaving)
			})
			changes.put(decision, compareDecisions, (*Decision).equals)
		} else {
			changes.remove(Decision{VIP: address}, compareDecisions)
		}
		prefix := netip.PrefixFrom(address, address.BitLen())
		for peer := range d.routes {
			if _, stays := announced[peer]; !stays {
				of(peer).remove(Route{Prefix: prefix}, compareRoutes)
			}
		}
		for peer, route := range announced {
			of(peer).put(route, compareRoutes, (*Route).Equal)
		}
	}
	d.decisions = changes.list
	copied := false
	for peer, list := range routes {
		if !list.changed {
			continue
		}
		if !copied {
			d.routes, copied = maps.Clone(d.routes), true
		}
		if d.routes[peer] = list.list; len(list.list) == 0 {
			delete(d.routes, peer)
		}
	}
}

func compareDecisions(a, b Decision) int { return a.VIP.Compare(b.VIP) }

func compareRoutes(a, b Route) int { return a.Prefix.Compare(b.Prefix) }

// copyOnWriteList is a sorted, shared list that is copied on its first change.
type copyOnWriteList[T any] struct {
	list    []T
	changed bool
}

func (c *copyOnWriteList[T]) copy() {
	if !c.changed {
		c.list, c.changed = slices.Clone(c.list), true
	}
}

func (c *copyOnWriteList[T]) put(element T, compare func(a, b T) int, equals func(a, b *T) bool) {
	place, found := slices.BinarySearchFunc(c.list, element, compare)
	switch {
	case !found:
		c.copy()
		c.list = slices.Insert(c.list, place, element)
	case !equals(&c.list[place], &element):
		c.copy()
		c.list[place] = element
	}
}

func (c *copyOnWriteList[T]) remove(element T, compare func(a, b T) int) {
	if place, found := slices.BinarySearchFunc(c.list, element, compare); found {
		c.copy()
		c.list = slices.Delete(c.list, place, place+1)
	}
}
