// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"math"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// bfdUp is the state of a BFD session that is up (RFC 5880).
const bfdUp = "Up"

func (b *builder) nodes() []Node {
	reasons := map[string]millracev1beta1.DrainReason{}
	for i := range b.state.Input.LBNodes {
		reasons[b.state.Input.LBNodes[i].Name] = b.state.Input.LBNodes[i].Spec.DrainReason
	}
	bfd := b.bfdStates()
	nodes := make([]Node, 0, len(b.report.Nodes))
	for i := range b.report.Nodes {
		from := &b.report.Nodes[i]
		node := Node{ID: nodeID(from.Name), Name: from.Name, Zone: from.Zone, Level: Good, Announced: from.Announced}
		for _, session := range from.Sessions {
			established := session.State == string(millracev1beta1.SessionEstablished)
			node.Sessions = append(node.Sessions, Session{
				Peer: session.Peer, State: session.State, Up: established, BFD: bfd[[2]string{from.Name, session.Peer}], Stale: b.isStale(from),
			})
		}
		reason := reasons[from.Name]
		problem, is := b.worst[node.ID]
		switch {
		case reason != "" && (!is || problem.Level != Bad):
			node.Level, node.Reason, node.Note = Idle, string(reason), drainNote(reason)
		case is:
			node.Level, node.Reason, node.Note = problem.Level, problem.Reason, problem.Message
		case b.refused["lbnodereports"]:
			node.Level, node.Note = Unknown, "its LBNodeReport may not be read"
		case b.refused["pods"]:
			node.Level, node.Note = Unknown, "pods may not be read: its agent may not run, and its report may be old"
		}
		nodes = append(nodes, node)
	}
	return nodes
}

func drainNote(reason millracev1beta1.DrainReason) string {
	return "does not announce: " + string(reason)
}

func (b *builder) bfdStates() map[[2]string]string {
	states := map[[2]string]string{}
	for i := range b.state.Input.LBNodeReports {
		from := &b.state.Input.LBNodeReports[i]
		for _, session := range from.Status.Sessions {
			if session.BFD != nil {
				states[[2]string{from.Name, session.Peer}] = string(session.BFD.State)
			}
		}
	}
	return states
}

func (b *builder) routers(nodes []Node) []Router {
	routers := make([]Router, 0, len(b.state.Input.Peers))
	place := map[string]int{}
	for i := range b.state.Input.Peers {
		peer := &b.state.Input.Peers[i]
		routers = append(routers, Router{
			ID: routerID(peer.Name), Name: peer.Name, Level: Good, Address: routerAddress(peer), ASN: peer.Spec.PeerASN,
		})
	}
	slices.SortFunc(routers, func(a, b Router) int { return report.CompareNames(a.Name, b.Name) })
	for i := range routers {
		place[routers[i].Name] = i
	}
	for i := range nodes {
		for _, session := range nodes[i].Sessions {
			at, is := place[session.Peer]
			if !is {
				// The LBPeer may not be readable, or is deleted.
				at = len(routers)
				place[session.Peer] = at
				routers = append(routers, Router{ID: routerID(session.Peer), Name: session.Peer, Level: Good})
			}
			routers[at].Sessions.add(session.Up, !session.Stale)
			if session.BFD != "" {
				routers[at].BFD.add(session.BFD == bfdUp, !session.Stale)
			}
		}
	}
	for i := range routers {
		b.judge(&routers[i])
	}
	return routers
}

// judge sets the state of a router from its own problem or else from its sessions.
func (b *builder) judge(router *Router) {
	if problem, is := b.worst[router.ID]; is {
		router.Level, router.Note = problem.Level, problem.Message
		return
	}
	switch {
	case router.Sessions.All == 0 && b.refused["lbnodereports"]:
		router.Level, router.Note = Unknown, "LBNodeReports may not be read"
	case router.Sessions.All == 0:
		router.Level, router.Note = Idle, "no node has a session with it"
	case router.Sessions.Good+router.Sessions.Unknown == 0:
		router.Level, router.Note = Bad, "no session is established"
	case router.Sessions.Good+router.Sessions.Unknown < router.Sessions.All:
		router.Level, router.Note = Warning, "some sessions are not established"
	case router.BFD.Good+router.BFD.Unknown < router.BFD.All:
		router.Level, router.Note = Warning, "some BFD sessions are not up"
	case router.Sessions.Unknown > 0:
		router.Level, router.Note = Unknown, "some sessions belong to nodes whose agent may not run"
	}
}

func routerAddress(peer *millracev1beta1.LBPeer) string {
	return cmp.Or(peer.Spec.Router.Address, peer.Spec.Router.Range, peer.Spec.Router.Interface, "default gateway")
}

// services returns the Services that have VIPs or wait for one, and the VIPs without a Service.
func (b *builder) services() []Service {
	rows := map[string]*Service{}
	var order []*Service
	row := func(id string, fresh Service) *Service {
		if rows[id] == nil {
			fresh.ID, fresh.Level = id, Good
			rows[id] = &fresh
			order = append(order, &fresh)
		}
		return rows[id]
	}
	for i := range b.report.VIPs {
		vip := &b.report.VIPs[i]
		for _, service := range vip.Services {
			b.addVIP(row(serviceID(service.Namespace, service.Name), Service{Namespace: service.Namespace, Name: service.Name}), vip, service)
		}
		if len(vip.Services) == 0 {
			reserved := row(vipID(vip.Address), Service{Name: vip.Address, VIPs: []string{vip.Address}})
			reserved.Level, reserved.Note, reserved.Reason = Idle, "no Service has the address", "Reserved"
		}
	}
	for _, problem := range b.found {
		if problem.Kind == "Service" {
			row(serviceID(problem.Namespace, problem.Name), Service{Namespace: problem.Namespace, Name: problem.Name})
		}
	}
	b.addTraffic(rows)
	b.addPods(rows)
	services := make([]Service, 0, len(order))
	for _, service := range order {
		if problem, is := b.worst[service.ID]; is {
			service.Level, service.Reason, service.Note = problem.Level, problem.Reason, problem.Message
		}
		if len(service.Ranges) > longRanges {
			service.Ranges = ""
		}
		services = append(services, *service)
	}
	slices.SortFunc(services, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), report.CompareNames(a.Name, b.Name))
	})
	return services
}

func (b *builder) addVIP(row *Service, vip *report.VIP, service report.Service) {
	row.VIPs = append(row.VIPs, vip.Address)
	row.Endpoints.Good += service.Ready
	row.Endpoints.All += service.Total
	if service.TrafficPolicy == "" {
		row.Level, row.Note, row.Reason = Idle, "the address is reserved for it", "Reserved"
		if b.refused["services"] {
			row.Level, row.Note, row.Reason = Unknown, "Services may not be read", ""
		}
		return
	}
	known, is := b.announced[vip.Address]
	if row.Level == Good && (!is || known.stale) {
		row.Level, row.Note = Unknown, "it is unknown whether a node announces "+vip.Address
	}
	if !is {
		return
	}
	if row.Announcing == nil || known.count < *row.Announcing {
		row.Announcing = &known.count
	}
	if len(b.state.Input.LBNodes) <= few {
		row.By = slices.Compact(slices.SortedFunc(slices.Values(slices.Concat(row.By, known.nodes)), report.CompareNames))
	}
	row.Ranges = joined(row.Ranges, known.ranges)
	if known.count == 0 && !known.stale && row.Level != Bad {
		row.Level, row.Reason, row.Note = Bad, report.ReasonNotAnnounced, "no node announces "+vip.Address
	}
}

// joined adds ranges without duplicates, because most VIPs of a Service have the same ranges.
func joined(had string, more []string) string {
	all := slices.DeleteFunc(strings.Split(had, ","), func(part string) bool { return part == "" })
	for _, ranges := range more {
		for part := range strings.SplitSeq(ranges, ",") {
			if part != "" && !slices.Contains(all, part) {
				all = append(all, part)
			}
		}
	}
	return strings.Join(all, ",")
}

func (b *builder) addTraffic(rows map[string]*Service) {
	if b.state.Traffic == nil {
		return
	}
	for i := range b.state.Traffic.Items {
		item := &b.state.Traffic.Items[i]
		if row := rows[serviceID(item.Namespace, item.Name)]; row != nil {
			rates := ratesOf(item.Rates)
			row.Rates = &rates
		}
	}
}

func (b *builder) addPods(rows map[string]*Service) {
	all := 0
	for _, row := range rows {
		all += row.Endpoints.All
	}
	if all > fewPods {
		return
	}
	for i := range b.state.Input.EndpointSlices {
		slice := &b.state.Input.EndpointSlices[i]
		if row := rows[serviceID(slice.Namespace, slice.Labels[discoveryv1.LabelServiceName])]; row != nil {
			row.Pods = append(row.Pods, podsOf(slice)...)
		}
	}
	for _, row := range rows {
		row.Pods = sortPods(row.Pods)
	}
}

func ratesOf(rates livev1alpha1.TrafficRates) Rates {
	return Rates{Connections: round(rates.Connections), Packets: round(rates.Packets), Bits: round(rates.Bits), Drops: round(rates.Drops)}
}

func (r *Rates) add(other Rates) {
	r.Connections += other.Connections
	r.Packets += other.Packets
	r.Bits += other.Bits
	r.Drops += other.Drops
}

// round keeps the three significant digits that are shown, so that smaller changes are not sent.
func round(value float64) float64 {
	if value == 0 || math.IsInf(value, 0) || math.IsNaN(value) {
		return 0
	}
	scale := math.Pow(10, 2-math.Floor(math.Log10(math.Abs(value))))
	return math.Round(value*scale) / scale
}

func rounded(values map[string]float64) map[string]float64 {
	out := make(map[string]float64, len(values))
	for key, value := range values {
		if value > 0 {
			out[key] = round(value)
		}
	}
	return out
}
