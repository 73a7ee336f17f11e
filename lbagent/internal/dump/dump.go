// SPDX-License-Identifier: Apache-2.0

// Package dump prints the content of a node's BPF maps.
package dump

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Write prints a State as a table, or as one consoleapi.Maps if asJSON is true.
func Write(state *forwarding.State, asJSON bool, out io.Writer) error {
	write := writeMaps
	if asJSON {
		write = func(held *consoleapi.Maps, out io.Writer) error { return json.NewEncoder(out).Encode(held) }
	}
	if err := write(newMaps(state), out); err != nil {
		return fmt.Errorf("print the maps: %w", err)
	}
	return nil
}

func newMaps(state *forwarding.State) *consoleapi.Maps {
	node := func(id forwarding.NodeID, n forwarding.Node) consoleapi.MapNode {
		return consoleapi.MapNode{ID: uint16(id), IPv4: n.IPv4, IPv6: n.IPv6, Zone: uint8(n.Zone)}
	}
	self := state.Self
	held := &consoleapi.Maps{
		Self: node(self.ID, forwarding.Node{IPv4: self.IPv4, IPv6: self.IPv6, Zone: self.Zone}),
		VIPs: slices.SortedFunc(maps.Keys(state.VIPs), netip.Addr.Compare),
	}
	for _, id := range slices.Sorted(maps.Keys(state.Nodes)) {
		held.Nodes = append(held.Nodes, node(id, state.Nodes[id]))
	}
	for _, key := range slices.SortedFunc(maps.Keys(state.Frontends), forwarding.FrontendKey.Compare) {
		held.Frontends = append(held.Frontends, newMapFrontend(key, state.Frontends[key]))
	}
	for _, source := range slices.SortedFunc(maps.Keys(state.SourceRanges), forwarding.SourceRange.Compare) {
		switch source.Set {
		case forwarding.Pools:
			held.Pools = append(held.Pools, source.Prefix)
			continue
		case forwarding.Aggregates:
			held.Aggregates = append(held.Aggregates, source.Prefix)
			continue
		}
		held.SourceRanges = append(held.SourceRanges, consoleapi.MapSourceRange{Set: uint32(source.Set), Prefix: source.Prefix})
	}
	for _, slot := range slices.Sorted(maps.Keys(state.NodeTables)) {
		rows := map[uint16]int{}
		for _, row := range *state.NodeTables[slot] {
			rows[uint16(row.Primary)]++
		}
		held.NodeTables = append(held.NodeTables, consoleapi.MapNodeTable{Slot: uint32(slot), Rows: rows})
	}
	for _, slot := range slices.Sorted(maps.Keys(state.EndpointTables)) {
		table := consoleapi.MapEndpointTable{Slot: uint32(slot), Rows: map[uint32]int{}}
		for _, id := range state.EndpointTables[slot] {
			if id == forwarding.RefusedEndpoint {
				table.Refused++
				continue
			}
			table.Rows[uint32(id)]++
		}
		held.EndpointTables = append(held.EndpointTables, table)
	}
	for _, id := range slices.Sorted(maps.Keys(state.Endpoints)) {
		endpoint := state.Endpoints[id]
		held.Endpoints = append(held.Endpoints, consoleapi.MapEndpoint{
			ID: uint32(id), Address: netip.AddrPortFrom(endpoint.Address, endpoint.Port),
		})
	}
	return held
}

func newMapFrontend(key forwarding.FrontendKey, frontend forwarding.Frontend) consoleapi.MapFrontend {
	held := consoleapi.MapFrontend{
		VIP: key.VIP, Port: key.Port, Protocol: forwarding.ProtocolName(key.Protocol), ID: uint32(frontend.ID),
		OwnEndpointsFirst: frontend.Local, NodeTable: uint32(frontend.Table), EndpointTable: uint32(frontend.Endpoints),
		AffinitySeconds: frontend.Affinity,
	}
	if frontend.Ranges != forwarding.NoSources {
		set := uint32(frontend.Ranges)
		held.Sources = &set
	}
	for zone, slot := range frontend.Zones {
		if slot == 0 {
			continue
		}
		if held.Zones == nil {
			held.Zones = map[uint8]uint32{}
		}
		held.Zones[uint8(zone)] = uint32(slot)
	}
	return held
}

func writeMaps(held *consoleapi.Maps, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(kind string, node consoleapi.MapNode) {
		fmt.Fprintf(w, "%s\tid %d\t%s\t%s\tzone %d\n", kind, node.ID, text(node.IPv4), text(node.IPv6), node.Zone)
	}
	line("self", held.Self)
	for _, node := range held.Nodes {
		line("node", node)
	}
	for _, vip := range held.VIPs {
		fmt.Fprintf(w, "vip\t%s\n", vip)
	}
	for i := range held.Frontends {
		writeFrontend(w, &held.Frontends[i])
	}
	for _, prefix := range held.Pools {
		fmt.Fprintf(w, "pool\t%s\n", prefix)
	}
	for _, prefix := range held.Aggregates {
		fmt.Fprintf(w, "aggregate\t%s\n", prefix)
	}
	for _, source := range held.SourceRanges {
		fmt.Fprintf(w, "source range\tset %d\t%s\n", source.Set, source.Prefix)
	}
	for _, table := range held.NodeTables {
		fmt.Fprintf(w, "node table %s\trows by node id\t%v\n", forwarding.NodeTableSlot(table.Slot), table.Rows)
	}
	for _, table := range held.EndpointTables {
		refused := ""
		if table.Refused > 0 {
			refused = fmt.Sprintf(", refused: %d", table.Refused)
		}
		fmt.Fprintf(w, "endpoint table %d\trows by endpoint id\t%v%s\n", table.Slot, table.Rows, refused)
	}
	for _, endpoint := range held.Endpoints {
		fmt.Fprintf(w, "endpoint\tid %d\t%s\n", endpoint.ID, endpoint.Address)
	}
	return w.Flush()
}

func writeFrontend(w io.Writer, frontend *consoleapi.MapFrontend) {
	serves := "by the row"
	if frontend.OwnEndpointsFirst {
		serves = "own endpoints first"
	}
	fmt.Fprintf(w, "frontend\t%s\t%s\tid %d\t%s\tnode table %s\tendpoint table %d\taffinity %ds\tsources %s%s\n",
		netip.AddrPortFrom(frontend.VIP, frontend.Port), frontend.Protocol, frontend.ID, serves, forwarding.NodeTableSlot(frontend.NodeTable),
		frontend.EndpointTable, frontend.AffinitySeconds, sources(frontend.Sources), zones(frontend.Zones))
}

func zones(tables map[uint8]uint32) string {
	if len(tables) == 0 {
		return ""
	}
	var list []string
	for _, zone := range slices.Sorted(maps.Keys(tables)) {
		list = append(list, fmt.Sprintf("%d:%s", zone, forwarding.NodeTableSlot(tables[zone])))
	}
	return "\ttables by zone " + strings.Join(list, " ")
}

func sources(set *uint32) string {
	switch {
	case set == nil:
		return "none"
	case *set == 0:
		return "all"
	default:
		return fmt.Sprintf("of set %d", *set)
	}
}

func text(address netip.Addr) string {
	if !address.IsValid() {
		return "-"
	}
	return address.String()
}
