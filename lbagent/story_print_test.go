// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
)

type page struct{ strings.Builder }

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

// showMaps prints the forwarding of a State by content, without ids and slots.
func showMaps(s *forwarding.State) string {
	p := &page{}
	p.line("self %d %s", s.Self.ID, showAddresses(s.Self.IPv4, s.Self.IPv6))
	for _, id := range slices.Sorted(maps.Keys(s.Nodes)) {
		p.line("node %d %s", id, showAddresses(s.Nodes[id].IPv4, s.Nodes[id].IPv6))
	}
	for _, prefix := range prefixesOf(s, forwarding.Pools) {
		p.line("pool %s", prefix)
	}
	for _, prefix := range prefixesOf(s, forwarding.Aggregates) {
		p.line("aggregate %s", prefix)
	}
	for _, vip := range slices.SortedFunc(maps.Keys(s.VIPs), netip.Addr.Compare) {
		p.line("vip %s", vip)
	}
	used := map[forwarding.EndpointID]bool{}
	for _, key := range slices.SortedFunc(maps.Keys(s.Frontends), forwarding.FrontendKey.Compare) {
		showFrontend(p, s, key, used)
	}
	for _, endpoint := range idle(s, used) {
		p.line("endpoint %s, for the connections that it has", endpoint)
	}
	return p.String()
}

func showAddresses(addresses ...netip.Addr) string {
	var texts []string
	for _, address := range addresses {
		if address.IsValid() {
			texts = append(texts, address.String())
		}
	}
	return strings.Join(texts, " ")
}

func showFrontend(p *page, s *forwarding.State, key forwarding.FrontendKey, used map[forwarding.EndpointID]bool) {
	frontend := s.Frontends[key]
	text := "Cluster"
	if frontend.Local {
		text = "Local"
	}
	if frontend.Refuses {
		text += ", refuses"
	}
	if frontend.Affinity > 0 {
		text += fmt.Sprintf(", affinity %ds", frontend.Affinity)
	}
	p.line("frontend %s %s", key, text)
	switch frontend.Ranges {
	case 0:
	case forwarding.NoSources:
		p.line("  admits nobody")
	default:
		for _, prefix := range prefixesOf(s, frontend.Ranges) {
			p.line("  admits %s", prefix)
		}
	}
	if frontend.Table != 0 {
		showTable(p, "", s.NodeTables[frontend.Table])
	}
	for zone, slot := range frontend.Zones {
		if slot != 0 && slot != frontend.Table {
			showTable(p, fmt.Sprintf("zone %d, ", zone), s.NodeTables[slot])
		}
	}
	if frontend.Endpoints == 0 {
		return
	}
	rows, refused := map[forwarding.Endpoint]int{}, 0
	for _, id := range s.EndpointTables[frontend.Endpoints] {
		if id == forwarding.RefusedEndpoint {
			refused++
			continue
		}
		rows[s.Endpoints[id]]++
		used[id] = true
	}
	for _, endpoint := range slices.SortedFunc(maps.Keys(rows), forwarding.Endpoint.Compare) {
		p.line("  endpoint %s, %d rows", showEndpoint(endpoint), rows[endpoint])
	}
	if refused > 0 {
		p.line("  refused, %d rows", refused)
	}
}

// showTable prints each node's number of rows, and of rows that it owned before others.
func showTable(p *page, where string, table *forwarding.NodeTable) {
	has, had := map[forwarding.NodeID]int{}, map[forwarding.NodeID]int{}
	for _, row := range *table {
		has[row.Primary]++
		if row.History > 0 {
			had[row.Chain[0]]++
			has[row.Chain[0]] += 0
		}
	}
	for _, id := range slices.Sorted(maps.Keys(has)) {
		text := fmt.Sprintf("  %snode %d, %d rows", where, id, has[id])
		if had[id] > 0 {
			text += fmt.Sprintf(", %d former ones", had[id])
		}
		p.line("%s", text)
	}
}

func showEndpoint(e forwarding.Endpoint) string {
	return netip.AddrPortFrom(e.Address, e.Port).String()
}

func idle(s *forwarding.State, used map[forwarding.EndpointID]bool) []string {
	var texts []string
	for id, endpoint := range s.Endpoints {
		if !used[id] {
			texts = append(texts, showEndpoint(endpoint))
		}
	}
	slices.Sort(texts)
	return texts
}

func prefixesOf(s *forwarding.State, set forwarding.SourceSet) []netip.Prefix {
	var prefixes []netip.Prefix
	for source := range s.SourceRanges {
		if source.Set == set {
			prefixes = append(prefixes, source.Prefix)
		}
	}
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return prefixes
}

func showRoutes(routes announce.Routes) string {
	p := &page{}
	for _, peer := range slices.Sorted(maps.Keys(routes)) {
		for _, route := range routes[peer] {
			communities := ""
			for _, community := range route.Communities {
				communities += fmt.Sprintf(", community %d:%d", community>>16, community&0xffff)
			}
			p.line("%s to %s, next hop %s%s", route.Prefix, peer, route.NextHop, communities)
		}
	}
	return p.String()
}

// showStatus prints the LBNodeReport.status of an observation, and the basis of each VIP's count.
func showStatus(o status.Observation) string {
	p := &page{}
	told := status.Build(o, &millracev1beta1.LBNodeReport{}, metav1.Time{})
	for _, condition := range told.Conditions {
		p.line("%s", strings.TrimSuffix(fmt.Sprintf("%s %s %s: %s", condition.Type, condition.Status, condition.Reason, condition.Message), ": "))
	}
	for _, decision := range o.Decisions {
		if observed := decision.Observed(o.Established()); len(observed.Peers) > 0 {
			p.line("%s announced to %s", decision.VIP, strings.Join(decision.Peers, ", "))
		} else {
			p.line("%s not announced, %s: %s", decision.VIP, observed.Reason, observed.Message)
		}
	}
	return p.String()
}

// showWrites prints the writes since the last call, with repeated ones merged.
func (p *player) showWrites() string {
	out := &page{}
	for len(p.node.steps) > 0 {
		n := 1
		for n < len(p.node.steps) && p.node.steps[n] == p.node.steps[0] {
			n++
		}
		if n == 1 {
			out.line("%s", p.node.steps[0])
		} else {
			out.line("%s %d times", p.node.steps[0], n)
		}
		p.node.steps = p.node.steps[n:]
	}
	return out.String()
}
