// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// complete returns an error if a frontend of the maps lacks an entry.
func (w *witness) complete(s *forwarding.State) error {
	nodes := [forwarding.MaxNodeID + 1]bool{0: true}
	nodes[s.Self.ID] = true
	for id := range s.Nodes {
		nodes[id] = true
	}
	hashes := map[uint64]forwarding.FrontendKey{}
	for key, frontend := range s.Frontends {
		if _, found := s.VIPs[key.VIP]; !found {
			return fmt.Errorf("VIP of %s is missing", key)
		}
		if !key.VIP.Is4() {
			hash := key.Hash(flowhash.Public())
			if other, taken := hashes[hash]; taken {
				return fmt.Errorf("%s has the same hash as %s", key, other)
			}
			hashes[hash] = key
		}
		for _, slot := range slotsOf(frontend) {
			table := s.NodeTables[slot]
			if table == nil {
				return fmt.Errorf("%s: node table %d is missing", key, slot)
			}
			for i, row := range *table {
				owned := row.Primary != 0 || w.mayBeNobodys(key, i)
				if !owned || !nodes[row.Primary] || !nodes[row.Chain[0]] || !nodes[row.Chain[1]] || !nodes[row.Chain[2]] {
					return fmt.Errorf("%s: row %d, %+v, contains a node that is not in the maps", key, i, row)
				}
			}
		}
		if err := completeEndpoints(s, key.VIP, frontend.Endpoints); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// mayBeNobodys reports whether a row may have no owner: without usable endpoints rows remain for existing
// connections, and rows of removed nodes have no owner until they are rewritten.
func (w *witness) mayBeNobodys(key forwarding.FrontendKey, row int) bool {
	usable := slices.ContainsFunc(w.model.Frontends, func(f *model.Frontend) bool { return f.Key == key && len(f.Weights) > 0 })
	return !usable || slices.ContainsFunc(slotsOf(w.last.Frontends[key]), func(slot forwarding.NodeTableSlot) bool {
		return (*w.last.NodeTables[slot])[row].Primary == 0
	})
}

// slotsOf returns a frontend's node tables, that of this node's zone first.
func slotsOf(frontend forwarding.Frontend) []forwarding.NodeTableSlot {
	var slots []forwarding.NodeTableSlot
	for _, slot := range append([]forwarding.NodeTableSlot{frontend.Table}, frontend.Zones[:]...) {
		if slot != 0 && !slices.Contains(slots, slot) {
			slots = append(slots, slot)
		}
	}
	return slots
}

func completeEndpoints(s *forwarding.State, vip netip.Addr, slot forwarding.EndpointTableSlot) error {
	if slot == 0 {
		return nil
	}
	table := s.EndpointTables[slot]
	if table == nil {
		return fmt.Errorf("endpoint table %d is missing", slot)
	}
	for i, id := range table {
		if id == forwarding.RefusedEndpoint {
			continue
		}
		if endpoint, found := s.Endpoints[id]; !found || endpoint.Address.Is4() != vip.Is4() {
			return fmt.Errorf("endpoint row %d selects %v (in the maps: %t)", i, endpoint, found)
		}
	}
	return nil
}

func admits(s *forwarding.State, key forwarding.FrontendKey, client netip.Addr) bool {
	frontend, found := s.Frontends[key]
	return found && (frontend.Ranges == 0 || slices.ContainsFunc(prefixesOf(s, frontend.Ranges), func(p netip.Prefix) bool {
		return p.Contains(client)
	}))
}

// outsiders are in no prefix of the stories.
var outsiders = []netip.Addr{netip.MustParseAddr("203.0.113.255"), netip.MustParseAddr("2001:db8:ffff::1")}

// clients returns the addresses at the bounds of all current and previous prefixes, and an outsider of each
// family.
func (w *witness) clients(s *forwarding.State) []netip.Addr {
	found := map[netip.Addr]bool{outsiders[0]: true, outsiders[1]: true}
	for _, state := range []*forwarding.State{w.last, s} {
		for source := range state.SourceRanges {
			first := source.Prefix.Addr()
			last := first.AsSlice()
			for bit := source.Prefix.Bits(); bit < 8*len(last); bit++ {
				last[bit/8] |= 0x80 >> (bit % 8)
			}
			end, _ := netip.AddrFromSlice(last)
			for _, client := range []netip.Addr{first.Prev(), first, end, end.Next()} {
				if client.IsValid() {
					found[client] = true
				}
			}
		}
	}
	return slices.Collect(maps.Keys(found))
}

func isWanted(frontend *model.Frontend, client netip.Addr) bool {
	return !frontend.Restricted || slices.ContainsFunc(frontend.Sources, func(p netip.Prefix) bool { return p.Contains(client) })
}

// outsider returns a client that a frontend admits and its Service does not.
func (w *witness) outsider(s *forwarding.State, frontend *model.Frontend) netip.Addr {
	if !frontend.Restricted {
		return netip.Addr{}
	}
	for _, client := range w.clients(s) {
		if client.Is4() == frontend.Key.VIP.Is4() && !isWanted(frontend, client) && admits(s, frontend.Key, client) {
			return client
		}
	}
	return netip.Addr{}
}

func (w *witness) checkAdmitted(s *forwarding.State) error {
	clients := w.clients(s)
	for _, frontend := range w.model.Frontends {
		_, before := w.last.Frontends[frontend.Key]
		entry, now := s.Frontends[frontend.Key]
		shut := entry.Ranges == forwarding.NoSources && w.outsider(w.last, frontend).IsValid()
		for _, client := range clients {
			if client.Is4() != frontend.Key.VIP.Is4() {
				continue
			}
			wanted := isWanted(frontend, client)
			had, has := admits(w.last, frontend.Key, client), admits(s, frontend.Key, client)
			if has && !had && !wanted {
				return fmt.Errorf("%s admits %s, but neither the old nor the new source ranges do", frontend.Key, client)
			}
			if before && now && had && !has && wanted && !shut {
				return fmt.Errorf("%s no longer admits %s, but the old and the new source ranges do", frontend.Key, client)
			}
		}
	}
	return nil
}

func (w *witness) checkRows(s *forwarding.State) error {
	for _, frontend := range w.model.Frontends {
		before, now := w.last.Frontends[frontend.Key], s.Frontends[frontend.Key]
		if _, found := s.Frontends[frontend.Key]; !found || before.Table == 0 {
			continue
		}
		if now.Table == 0 {
			if len(frontend.Weights) > 0 || frontend.OnlyEstablished {
				return fmt.Errorf("%s lost its rows although it has endpoints", frontend.Key)
			}
			continue
		}
		check := w.checkOwnRows
		if len(slotsOf(before))+len(slotsOf(now)) > 2 {
			check = w.checkZones
		}
		if err := check(before, now, s); err != nil {
			return fmt.Errorf("%s: %w", frontend.Key, err)
		}
	}
	return nil
}

// checkOwnRows checks a frontend with one node table. A row may have former owners of a table that was merged
// with it.
func (w *witness) checkOwnRows(before, now forwarding.Frontend, s *forwarding.State) error {
	old, table := w.last.NodeTables[before.Table], s.NodeTables[now.Table]
	if old == table {
		return nil
	}
	for number, row := range *table {
		previous := (*old)[number]
		if previous == row {
			continue
		}
		want, known := w.history(previous, row.Primary), row.Chain[:row.History]
		if slices.ContainsFunc(want, func(node forwarding.NodeID) bool { return !slices.Contains(known, node) }) {
			return fmt.Errorf("row %d changed from %+v to %+v; previous owners %v", number, previous, row, want)
		}
	}
	return nil
}

// checkZones checks a frontend with a node table per zone, before or now. A flow is looked up in all of them,
// so each previous owner of a row must be in one.
func (w *witness) checkZones(before, now forwarding.Frontend, s *forwarding.State) error {
	var tables []*forwarding.NodeTable
	for _, slot := range slotsOf(now) {
		tables = append(tables, s.NodeTables[slot])
	}
	for _, slot := range slotsOf(before) {
		table := w.last.NodeTables[slot]
		if slices.Contains(tables, table) {
			continue
		}
		for number := range *table {
			owner := (*table)[number].Primary
			known := slices.ContainsFunc(tables, func(table *forwarding.NodeTable) bool {
				row := (*table)[number]
				return row.Primary == owner || slices.Contains(row.Chain[:], owner)
			})
			if w.has[owner] && !known {
				return fmt.Errorf("row %d of table %d was owned by node %d, which is in no row of any table", number, slot, owner)
			}
		}
	}
	return nil
}

func (w *witness) history(row forwarding.Row, owner forwarding.NodeID) []forwarding.NodeID {
	var previous []forwarding.NodeID
	for _, node := range append([]forwarding.NodeID{row.Primary}, row.Chain[:row.History]...) {
		if node != 0 && node != owner && w.has[node] && !slices.Contains(previous, node) && len(previous) < forwarding.ChainLength {
			previous = append(previous, node)
		}
	}
	return previous
}
