// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// agreement compares the VIPs of nodes with those of the API server, by node.
type agreement struct {
	// missing are VIPs of Services that the node has not programmed.
	missing map[string]firstAddresses
	// stale are addresses that are not VIPs.
	stale map[string]firstAddresses
	bound int
}

// firstAddresses keeps the first addresses and counts the others.
type firstAddresses struct {
	first []string
	more  int
}

func (f firstAddresses) with(address string) firstAddresses {
	const most = 3
	if len(f.first) == most {
		return firstAddresses{f.first, f.more + 1}
	}
	return firstAddresses{append(f.first, address), f.more}
}

func (f firstAddresses) String() string {
	if f.more == 0 {
		return strings.Join(f.first, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(f.first, ", "), f.more)
}

// decided has numbers to save memory: there is one for each VIP and node.
type decided struct{ decision, node int32 }

// decisions numbers distinct decisions.
type decisions struct {
	numbers map[string]int32
	groups  []consoleapi.VIPGroup
}

func (d *decisions) number(group consoleapi.VIPGroup) int32 {
	key := strings.Join(append([]string{group.Reason, group.Message}, group.Peers...), "\x00")
	number, known := d.numbers[key]
	if !known {
		number = int32(len(d.groups))
		d.numbers[key] = number
		d.groups = append(d.groups, consoleapi.VIPGroup{Peers: group.Peers, Reason: group.Reason, Message: group.Message})
	}
	return number
}

func (l *lookup) announced(vips []VIP) agreement {
	index := make(map[netip.Addr]int, len(vips))
	for i := range vips {
		if address, err := netip.ParseAddr(vips[i].Address); err == nil {
			index[address] = i
		}
	}
	bound := 0
	for i := range vips {
		if vips[i].InUse() {
			bound++
		}
	}
	nodes := slices.SortedFunc(maps.Keys(l.in.Agents.Responses), CompareNames)
	found := agreement{missing: map[string]firstAddresses{}, stale: map[string]firstAddresses{}, bound: bound}
	known := decisions{numbers: map[string]int32{}}
	byVIP := make([][]decided, len(vips))
	// programmedBy is, for each VIP, the index plus 1 of the last node that has it.
	programmedBy := make([]int, len(vips))
	for n, node := range nodes {
		for _, group := range l.in.Agents.Responses[node].Groups {
			number := known.number(group)
			for _, address := range group.Addresses {
				i, is := index[address]
				if !is {
					found.stale[node] = found.stale[node].with(address.String())
					continue
				}
				byVIP[i] = append(byVIP[i], decided{number, int32(n)})
				if group.Reason != millracev1beta1.ReasonNotProgrammed {
					programmedBy[i] = n + 1
					vips[i].Programmed++
				}
			}
		}
		for i := range vips {
			if programmedBy[i] != n+1 && vips[i].InUse() {
				found.missing[node] = found.missing[node].with(vips[i].Address)
			}
		}
	}
	for i := range vips {
		vips[i].AnnouncedBy, vips[i].WithheldBy = grouped(byVIP[i], known.groups, nodes)
	}
	return found
}

func grouped(list []decided, decisions []consoleapi.VIPGroup, nodes []string) (announced []Announcement, withheld []Withheld) {
	slices.SortStableFunc(list, func(a, b decided) int { return cmp.Compare(a.decision, b.decision) })
	for len(list) > 0 {
		number := list[0].decision
		end := slices.IndexFunc(list, func(d decided) bool { return d.decision != number })
		if end < 0 {
			end = len(list)
		}
		names := make([]string, 0, end)
		for _, d := range list[:end] {
			names = append(names, nodes[d.node])
		}
		if decision := decisions[number]; len(decision.Peers) > 0 {
			announced = append(announced, Announcement{Peers: decision.Peers, Nodes: names})
		} else {
			withheld = append(withheld, Withheld{Reason: decision.Reason, Message: decision.Message, Nodes: names})
		}
		list = list[end:]
	}
	return announced, withheld
}

func remarks(in *Input) []string {
	if remark := in.omission(); remark != "" {
		return []string{remark}
	}
	if !in.Agents.Forbidden {
		return nil
	}
	remark := fmt.Sprintf("The nodes of each VIP are not shown, only the counts of the nodes' reports: "+
		"you may not query the agents (pods/exec). Role millrace-tracer in namespace %s permits it.", in.Namespace)
	if in.Agents.LiveForbidden {
		remark += " So does ClusterRole millrace-viewer, bound for the whole cluster, which permits listing vipannouncements of live.millrace.io."
	}
	return []string{remark}
}
