// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// Dump prints what the node's pinned maps hold, whether an agent runs or not.
func Dump(pinRoot string, out io.Writer) error {
	state, err := dataplane.Read(pinRoot)
	if err != nil {
		return fmt.Errorf("read the data plane below %s: %w", pinRoot, err)
	}
	return writeState(state, out)
}

func writeState(state *program.State, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "self\tid %d\t%s\t%s\tzone %d\n", state.Self.ID, text(state.Self.IPv4), text(state.Self.IPv6), state.Self.Zone)
	for _, id := range slices.Sorted(maps.Keys(state.Nodes)) {
		node := state.Nodes[id]
		fmt.Fprintf(w, "node\tid %d\t%s\t%s\tzone %d\n", id, text(node.IPv4), text(node.IPv6), node.Zone)
	}
	for _, vip := range slices.SortedFunc(maps.Keys(state.VIPs), netip.Addr.Compare) {
		fmt.Fprintf(w, "vip\t%s\n", vip)
	}
	keys := slices.SortedFunc(maps.Keys(state.Frontends), func(a, b program.FrontendKey) int {
		return cmp.Or(a.VIP.Compare(b.VIP), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	})
	for _, key := range keys {
		frontend := state.Frontends[key]
		policy := "Cluster"
		if frontend.Local {
			policy = "Local"
		}
		fmt.Fprintf(w, "frontend\t%s\tprotocol %d\tid %d\t%s\ttable %d\tendpoint table %d\taffinity %ds\tsources %s%s\n",
			netip.AddrPortFrom(key.VIP, key.Port), key.Protocol, frontend.ID, policy, frontend.Table, frontend.Endpoints,
			frontend.Affinity, sources(frontend.Ranges), zones(frontend.Zones))
	}
	for _, source := range slices.SortedFunc(maps.Keys(state.SourceRanges), program.SourceRange.Compare) {
		if source.Set == program.Pools {
			fmt.Fprintf(w, "pool\t%s\n", source.Prefix)
			continue
		}
		fmt.Fprintf(w, "source range\tset %d\t%s\n", source.Set, source.Prefix)
	}
	for _, slot := range slices.Sorted(maps.Keys(state.Tables)) {
		fmt.Fprintf(w, "table %d\trows by node id\t%v\n", slot, shares(state.Tables[slot]))
	}
	for _, id := range slices.Sorted(maps.Keys(state.Endpoints)) {
		endpoint := state.Endpoints[id]
		fmt.Fprintf(w, "endpoint\tid %d\t%s\n", id, netip.AddrPortFrom(endpoint.Address, endpoint.Port))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the maps: %w", err)
	}
	return nil
}

// zones says which table each zone has, if there is more than one.
func zones(tables [program.Zones]program.TableSlot) string {
	var list []string
	for zone, slot := range tables {
		if slot != 0 {
			list = append(list, fmt.Sprintf("%d:%d", zone, slot))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return "\ttables by zone " + strings.Join(list, " ")
}

// sources says whom a frontend admits.
func sources(set program.SourceSet) string {
	switch set {
	case 0:
		return "all"
	case program.Nobody:
		return "none"
	default:
		return fmt.Sprintf("of set %d", set)
	}
}

// text is an address, or "-" for none.
func text(address netip.Addr) string {
	if !address.IsValid() {
		return "-"
	}
	return address.String()
}

// shares counts a table's rows by their primary.
func shares(table *program.Table) map[program.NodeID]int {
	counts := map[program.NodeID]int{}
	for _, row := range table {
		counts[row.Primary]++
	}
	return counts
}
