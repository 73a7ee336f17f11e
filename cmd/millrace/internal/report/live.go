// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
)

// noLiveAnswer is the error of a node that does not answer the aggregated API.
const noLiveAnswer = "it does not answer live.millrace.io"

// AnnouncedLive converts announcements to agents' answers, for the given addresses or all. Silent nodes
// without a running agent are ignored.
func AnnouncedLive(list *livev1alpha1.VIPAnnouncementList, addresses, running []string) (Agents, error) {
	agents := Agents{Responses: map[string]*consoleapi.VIPs{}, Failures: map[string]string{}}
	for _, node := range list.Silent {
		if slices.Contains(running, node) {
			agents.Failures[node] = noLiveAnswer
		}
	}
	for _, node := range list.Answered {
		agents.Responses[node] = &consoleapi.VIPs{Node: node, Groups: []consoleapi.VIPGroup{}}
	}
	wanted := map[string]bool{}
	for _, address := range addresses {
		wanted[address] = true
	}
	l := liveResponses{list.Answered, agents.Responses, decisions{numbers: map[string]int32{}}, make([][]int, len(list.Answered))}
	for i := range list.Items {
		item := &list.Items[i]
		if len(wanted) > 0 && !wanted[item.Address] {
			continue
		}
		address, err := netip.ParseAddr(item.Address)
		for j := range item.Announced {
			group := &item.Announced[j]
			err = cmp.Or(err, l.add(address, consoleapi.VIPGroup{Peers: group.Peers}, group.NodeRanges))
		}
		for j := range item.Withheld {
			group := &item.Withheld[j]
			err = cmp.Or(err, l.add(address, consoleapi.VIPGroup{Reason: group.Reason, Message: group.Message}, group.NodeRanges))
		}
		if err != nil {
			return Agents{}, fmt.Errorf("read VIPAnnouncement %s: %w", item.Name, err)
		}
	}
	return agents, nil
}

type liveResponses struct {
	nodes   []string
	answers map[string]*consoleapi.VIPs
	known   decisions
	// groups has, by node and number of a decision, the index of its group plus 1.
	groups [][]int
}

// add adds a VIP to the group of a decision, on all nodes of ranges.
func (l *liveResponses) add(address netip.Addr, decision consoleapi.VIPGroup, ranges string) error {
	number := int(l.known.number(decision))
	for part := range strings.SplitSeq(ranges, ",") {
		from, to, err := rangeOf(part, len(l.nodes))
		if err != nil {
			return err
		}
		for node := from; node <= to; node++ {
			for len(l.groups[node]) <= number {
				l.groups[node] = append(l.groups[node], 0)
			}
			answer := l.answers[l.nodes[node]]
			if l.groups[node][number] == 0 {
				answer.Groups = append(answer.Groups, decision)
				l.groups[node][number] = len(answer.Groups)
			}
			group := &answer.Groups[l.groups[node][number]-1]
			group.Addresses = append(group.Addresses, address)
		}
	}
	return nil
}

// NodesIn returns the nodes at the indexes of ranges, such as 0-4,7.
func NodesIn(ranges string, nodes []string) ([]string, error) {
	var named []string
	for part := range strings.SplitSeq(ranges, ",") {
		from, to, err := rangeOf(part, len(nodes))
		if err != nil {
			return nil, err
		}
		named = append(named, nodes[from:to+1]...)
	}
	return named, nil
}

// rangeOf parses a range such as 0-4 or 7, with indexes below limit.
func rangeOf(text string, limit int) (from, to int, err error) {
	first, last, found := strings.Cut(text, "-")
	if !found {
		last = first
	}
	if from, err = strconv.Atoi(first); err == nil {
		to, err = strconv.Atoi(last)
	}
	if err != nil || from < 0 || to < from || to >= limit {
		return 0, 0, fmt.Errorf("nodeRanges: %q are not indexes of %d nodes", text, limit)
	}
	return from, to, nil
}

// SessionsLive converts sessions to answers of the given nodes or all. Missing nodes have not answered.
func SessionsLive(list *livev1alpha1.BGPSessionList, nodes []string) []consoleapi.BGP {
	byNode := map[string]*consoleapi.BGP{}
	for _, node := range list.Answered {
		if len(nodes) == 0 || slices.Contains(nodes, node) {
			byNode[node] = &consoleapi.BGP{Node: node}
		}
	}
	for i := range list.Items {
		session := &list.Items[i]
		node := byNode[session.Node]
		if node == nil {
			continue
		}
		address, _ := netip.ParseAddr(session.Address)
		local, _ := netip.ParseAddr(session.LocalAddress)
		peer := consoleapi.BGPPeer{
			Peer: session.Peer, Address: address, LocalAddress: local, State: session.State, LastError: session.LastError,
			Flaps: uint64(session.Flaps), Families: session.Families, RoutesSent: int(session.RoutesSent),
			UpdatesSent: uint64(session.UpdatesSent), UpdatesReceived: uint64(session.UpdatesReceived),
			BFD: session.BFD, BFDMessage: session.BFDMessage,
		}
		if session.Since != nil {
			peer.Since = session.Since.Time
		}
		if session.LastErrorTime != nil {
			peer.LastErrorTime = session.LastErrorTime.Time
		}
		if session.Due != nil {
			peer.Due = session.Due.Time
		}
		node.Peers = append(node.Peers, ToSeconds(peer))
	}
	var states []consoleapi.BGP
	for _, name := range slices.SortedFunc(maps.Keys(byNode), CompareNames) {
		states = append(states, *byNode[name])
	}
	return states
}

// ToSeconds truncates the times of a session to seconds in UTC, the precision of objects.
func ToSeconds(peer consoleapi.BGPPeer) consoleapi.BGPPeer {
	for _, at := range []*time.Time{&peer.Since, &peer.LastErrorTime, &peer.Due} {
		*at = at.UTC().Truncate(time.Second)
	}
	return peer
}

// RatesLive converts traffic to rates of vip's frontends, or of all if it is invalid. In a list of all
// namespaces, drops are of all packets; otherwise of the namespace's Services.
func RatesLive(list *livev1alpha1.ServiceTrafficList, namespace string, vip netip.Addr) Rates {
	rates := Rates{
		Nodes: int(list.AnsweredNodes), Window: list.Window.Seconds(),
		Frontends: []FrontendRate{}, Drops: map[string]float64{}, Uplinks: []UplinkRate{},
	}
	for i := range list.Items {
		service := &list.Items[i]
		for _, frontend := range service.Frontends {
			address, _ := netip.ParseAddr(frontend.VIP)
			if vip.IsValid() && vip != address {
				continue
			}
			rates.Frontends = append(rates.Frontends, FrontendRate{
				FrontendName: consoleapi.FrontendName{
					VIP: address, Port: uint16(frontend.Port), Protocol: frontend.Protocol, Service: service.Namespace + "/" + service.Name,
				},
				Packets: frontend.Rates.Packets, Bits: frontend.Rates.Bits, Connections: frontend.Rates.Connections, Drops: frontend.Rates.Drops,
			})
		}
		for reason, rate := range service.Drops {
			if namespace != "" && rate > 0 {
				rates.Drops[reason] += rate
			}
		}
	}
	maps.Copy(rates.Drops, list.Drops)
	for _, uplink := range list.Uplinks {
		rates.Uplinks = append(rates.Uplinks, UplinkRate(uplink))
	}
	rates.sort()
	return rates
}
