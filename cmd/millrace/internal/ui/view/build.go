// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"strings"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

const (
	// few is the maximum number of nodes in a cluster whose rows name nodes.
	few = 60
	// fewPods is the maximum number of endpoints in a cluster whose rows name endpoints.
	fewPods = 200
	// longRanges limits the ranges of a row in bytes; the page requests longer ones on selection.
	longRanges = 400
	// suspects limits the VIPs with at most one announcing node that the report explains.
	suspects = 200
	// namedSilent limits Head.SilentNodes.
	namedSilent = 5
)

// Build computes the view.
func Build(state *State) *View {
	b := newBuilder(state)
	view := &View{Problems: b.problems()}
	b.index(view.Problems)
	view.Nodes = b.nodes()
	view.Routers = b.routers(view.Nodes)
	view.Services = b.services()
	view.Pools = b.pools(view.Problems)
	if list := state.Announcements; list != nil && len(state.Input.LBNodes) > few {
		view.Answered = list.Answered
	}
	view.Head = b.head(view)
	return view
}

type builder struct {
	state     *State
	report    *report.View
	refused   map[string]bool
	announced map[string]announced
	rows      map[string][]string
	worst     map[string]Problem
	found     []report.Problem
}

// announced has the nodes of a VIP as names in small clusters, as ranges in others.
type announced struct {
	count  int
	nodes  []string
	ranges []string
	stale  bool
}

func newBuilder(state *State) *builder {
	b := &builder{
		state: state, report: report.Build(state.Input), refused: map[string]bool{},
		announced: map[string]announced{}, rows: map[string][]string{}, worst: map[string]Problem{},
	}
	for _, refusal := range state.Refused {
		b.refused[refusal.Kind] = true
	}
	for i := range b.report.VIPs {
		vip := &b.report.VIPs[i]
		b.rows[vip.Address] = rowsOf(vip)
		if len(state.Input.Agents.Responses) > 0 {
			b.announced[vip.Address] = announcedBy(vip)
		}
	}
	if list := state.Announcements; list != nil && len(list.Answered) > 0 {
		b.addLive()
	}
	if len(b.announced) == 0 {
		b.addReports()
	}
	b.found = append(b.report.Problems, b.explained()...)
	return b
}

// rowsOf returns the rows of a VIP's Services, or else the VIP's own.
func rowsOf(vip *report.VIP) []string {
	var rows []string
	for _, service := range vip.Services {
		rows = append(rows, serviceID(service.Namespace, service.Name))
	}
	if len(rows) == 0 {
		rows = append(rows, vipID(vip.Address))
	}
	return rows
}

func announcedBy(vip *report.VIP) announced {
	var nodes []string
	for _, announcement := range vip.AnnouncedBy {
		nodes = append(nodes, announcement.Nodes...)
	}
	slices.SortFunc(nodes, report.CompareNames)
	return announced{count: len(nodes), nodes: nodes}
}

func (b *builder) addLive() {
	list := b.state.Announcements
	for i := range list.Items {
		item := &list.Items[i]
		known := announced{count: int(item.Nodes.Announcing), stale: b.state.LiveOutage != nil && !b.state.LiveOutage.Seen.IsZero()}
		if len(b.state.Input.LBNodes) <= few {
			for _, group := range item.Announced {
				nodes, err := report.NodesIn(group.NodeRanges, list.Answered)
				if err != nil {
					nodes = group.Nodes
				}
				known.nodes = append(known.nodes, nodes...)
			}
			slices.SortFunc(known.nodes, report.CompareNames)
			known.nodes = slices.Compact(known.nodes)
		} else {
			for _, group := range item.Announced {
				known.ranges = append(known.ranges, group.NodeRanges)
			}
		}
		b.announced[item.Address] = known
	}
}

// addReports uses counts of the nodes' reports that identify VIPs: all VIPs of Services, or no VIP.
func (b *builder) addReports() {
	inUse := 0
	for i := range b.report.VIPs {
		if b.report.VIPs[i].InUse() {
			inUse++
		}
	}
	var all []string
	complete := len(b.report.Nodes) > 0 && !b.refused["lbnodereports"]
	for i := range b.report.Nodes {
		node := &b.report.Nodes[i]
		switch {
		case b.isStale(node):
			complete = false
		case node.Announced == inUse && node.Programmed == inUse:
			all = append(all, node.Name)
		case node.Announced > 0:
			complete = false
		}
	}
	if len(all) == 0 && !complete {
		return
	}
	for i := range b.report.VIPs {
		if vip := &b.report.VIPs[i]; vip.InUse() {
			b.announced[vip.Address] = announced{count: len(all), nodes: all}
		}
	}
}

func (b *builder) isStale(node *report.Node) bool {
	return b.refused["pods"] || node.Agent != report.AgentReady || node.Ready == "Unknown"
}

// explained builds the report for VIPs that at most one node announces, because expanding the decisions of
// all nodes about all VIPs is too expensive.
func (b *builder) explained() []report.Problem {
	if b.state.Announcements == nil || len(b.state.Input.Agents.Responses) > 0 {
		return nil
	}
	in := *b.state.Input
	in.VIPs = nil
	var addresses []string
	for i := range b.state.Input.VIPs {
		vip := &b.state.Input.VIPs[i]
		known, is := b.announced[vip.Spec.Address]
		if is && known.count <= 1 && len(vip.Spec.Claims) > 0 && len(addresses) < suspects {
			in.VIPs = append(in.VIPs, *vip)
			addresses = append(addresses, vip.Spec.Address)
		}
	}
	if len(addresses) == 0 {
		return nil
	}
	var err error
	if in.Agents, err = report.AnnouncedLive(b.state.Announcements, addresses, nil); err != nil {
		return nil
	}
	causes := map[report.Problem]bool{}
	for _, problem := range b.report.Problems {
		causes[problem] = true
	}
	var problems []report.Problem
	for _, problem := range report.Build(&in).Problems {
		if problem.Kind == "VIP" && !causes[problem] {
			problems = append(problems, problem)
		}
	}
	return problems
}

// baseless lists, for a kind that may not be read, the reasons that are meaningless without it.
var baseless = map[string][]string{
	"pods":           {report.ReasonNotRunning, report.ReasonNotReady, report.ReasonNoLBNode},
	"services":       {report.ReasonServiceNotFound, report.ReasonNotInStatus},
	"endpointslices": {report.ReasonNoReadyEndpoint},
	"lbnodereports":  {report.ReasonNotReported},
	"lbpeers":        {report.ReasonNotAnnounced},
	"vipadvertisements": {
		report.ReasonNotAnnounced,
	},
}

func (b *builder) problems() []Problem {
	skip := map[string]bool{}
	for kind, reasons := range baseless {
		for _, reason := range reasons {
			skip[reason] = skip[reason] || b.refused[kind]
		}
	}
	established := map[string]bool{}
	for i := range b.report.Nodes {
		established[b.report.Nodes[i].Name] = b.report.Nodes[i].Established() > 0
	}
	problems := []Problem{}
	seen := map[string]int{}
	for _, problem := range b.found {
		if skip[problem.Reason] {
			continue
		}
		summary := Problem{
			Object: problem.Object(), Reason: problem.Reason, Message: problem.Message, Level: levelOf(problem), Row: b.rowOf(problem),
			Since: problem.Since, cause: problem.CauseKey(),
		}
		if problem.Reason == millracev1beta1.ReasonNotEstablished && established[problem.Name] {
			// The other sessions carry its routes.
			summary.Level = Warning
		}
		summary.ID = strings.Join([]string{summary.Object, summary.Reason}, " ")
		if seen[summary.ID]++; seen[summary.ID] > 1 {
			summary.ID += fmt.Sprintf(" %d", seen[summary.ID])
		}
		problems = append(problems, summary)
	}
	slices.SortStableFunc(problems, func(a, b Problem) int { return severity[a.Level] - severity[b.Level] })
	return problems
}

func (b *builder) pools(problems []Problem) []Pool {
	pools := make([]Pool, 0, len(b.state.Input.Pools))
	for i := range b.state.Input.Pools {
		from := &b.state.Input.Pools[i]
		pool := Pool{
			ID: "pool/" + from.Name, Name: from.Name, Level: Good, Addresses: from.Spec.Addresses,
			Assigned: from.Status.Assigned, Free: from.Status.FreeDisplay,
		}
		at := slices.IndexFunc(problems, func(problem Problem) bool { return problem.Object == "VIPPool/"+from.Name })
		if at >= 0 {
			pool.Level, pool.Note = problems[at].Level, problems[at].Message
		}
		pools = append(pools, pool)
	}
	return pools
}

// namedRows limits Cause.Rows.
const namedRows = 8

// causes merges problems with the same cause and level, in the order of the first ones.
func causes(problems []Problem) []Cause {
	type key struct {
		cause report.CauseKey
		level Level
	}
	merged := []Cause{}
	at := map[key]int{}
	for i := range problems {
		problem := &problems[i]
		place, known := at[key{problem.cause, problem.Level}]
		if !known {
			place = len(merged)
			at[key{problem.cause, problem.Level}] = place
			merged = append(merged, Cause{Problem: *problem})
		}
		cause := &merged[place]
		cause.Count++
		cause.Since = report.Earliest(cause.Since, problem.Since)
		if problem.Row != "" && len(cause.Rows) < namedRows {
			cause.Rows = append(cause.Rows, problem.Row)
		}
	}
	return merged
}

// levelOf returns Bad if the problem stops traffic, and otherwise Warning.
func levelOf(problem report.Problem) Level {
	switch problem.Reason {
	case report.ReasonNotRunning, report.ReasonNotReady, report.ReasonNotReported, report.ReasonNotAnnounced,
		report.ReasonNoReadyEndpoint, millracev1beta1.ReasonNodeNotReady, millracev1beta1.ReasonAttachFailed, millracev1beta1.ReasonNoUplink,
		millracev1beta1.ReasonProgrammingFailed, millracev1beta1.ReasonInvalid, millracev1beta1.ReasonNotEstablished:
		return Bad
	}
	if problem.Kind == "Service" && problem.Reason != report.ReasonNotObserved {
		return Bad
	}
	return Warning
}

func (b *builder) rowOf(problem report.Problem) string {
	switch problem.Kind {
	case "LBNode":
		return nodeID(problem.Name)
	case "LBPeer":
		return routerID(problem.Name)
	case "Service":
		return serviceID(problem.Namespace, problem.Name)
	case "VIP":
		if rows := b.rows[problem.Name]; len(rows) > 0 {
			return rows[0]
		}
		return vipID(problem.Name)
	}
	return ""
}

// collective are reasons of problems that are reported once, at the first of many nodes.
var collective = map[string]bool{report.ReasonGenericXDP: true, report.ReasonPartiallyServed: true, report.ReasonAgentUnreachable: true}

func (b *builder) index(problems []Problem) {
	for _, problem := range problems {
		if problem.Row == "" || collective[problem.Reason] {
			continue
		}
		rows := []string{problem.Row}
		if address, is := strings.CutPrefix(problem.Object, "VIP/"); is && len(b.rows[address]) > 0 {
			rows = b.rows[address]
		}
		for _, row := range rows {
			if had, is := b.worst[row]; !is || severity[problem.Level] < severity[had.Level] {
				b.worst[row] = problem
			}
		}
	}
}

func (b *builder) head(view *View) Head {
	head := Head{
		Cluster: b.state.Cluster, Away: b.state.APIOutage, Live: b.state.LiveOutage, Refused: b.state.Refused, Next: b.report.Next,
	}
	for i := range view.Nodes {
		level := view.Nodes[i].Level
		head.Nodes.add(level == Good || level == Idle, level != Unknown)
	}
	for _, router := range view.Routers {
		head.Sessions.addAll(router.Sessions)
		head.BFD.addAll(router.BFD)
	}
	for i := range b.report.VIPs {
		vip := &b.report.VIPs[i]
		if !vip.InUse() {
			continue
		}
		known, is := b.announced[vip.Address]
		head.VIPs.add(known.count > 0, is && !known.stale || b.worst[b.rows[vip.Address][0]].Level == Bad)
	}
	for i := range view.Services {
		head.Endpoints.addAll(view.Services[i].Endpoints)
	}
	if list := b.state.Announcements; list != nil {
		head.Silent = len(list.Silent)
		head.SilentNodes = list.Silent[:min(len(list.Silent), namedSilent)]
	}
	if list := b.state.Traffic; list != nil {
		rates := Rates{}
		for i := range list.Items {
			rates.add(ratesOf(list.Items[i].Rates))
		}
		rates.Drops = 0
		for _, rate := range list.Drops {
			rates.Drops += rate
		}
		head.Rates, head.Drops, head.Window = &rates, rounded(list.Drops), round(list.Window.Seconds())
	}
	return head
}
