// SPDX-License-Identifier: Apache-2.0

// Package status writes the agent's observations: the node's boot into the LBNode, which all agents watch, and
// everything else into the LBNodeReport.
package status

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/dad"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/readiness"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
)

// Observation is the agent's state at one moment.
type Observation struct {
	Version    string
	Nodes      int
	Interfaces []millracev1beta1.InterfaceStatus
	// MissingPrograms are the errors of required uplinks without programs; other uplinks are optional.
	MissingPrograms []string
	Sessions        []millracev1beta1.SessionStatus
	Programmed      int
	// Decisions cover the VIPs that the node should announce, sorted by address.
	Decisions []announce.Decision
	Problems  []model.Problem
	// ProgramError is the error of the last map update, or nil.
	ProgramError error
	// Host are host settings that break traffic, one sentence each.
	Host []string
	// UnexpectedUplink is true while packets from nodes are dropped because they arrive on an uplink
	// without a route to those nodes.
	UnexpectedUplink bool
	// TunnelKey is nil until the Secret was read.
	TunnelKey *TunnelKey
	// NodeHealth is the result of probes of other nodes.
	NodeHealth NodeHealth
	// Held are objects retained after a mass removal.
	Held []removalguard.Held
	// Duplicates are hosts that use the address of a VIP, sorted by address.
	Duplicates []dad.Holder
	// Unready are endpoints that are served although they are not ready.
	Unready readiness.Served
	// L2 is the node's L2 reach; valid if L2Known.
	L2      []millracev1beta1.L2Reach
	L2Known bool
	// Answering are the VIPs that the node answers ARP and neighbor discovery for, sorted.
	Answering []netip.Addr
	// Forwards is true if the maps can forward packets after the last pass, even if single writes failed.
	Forwards bool
}

// NodeHealth lists nodes by the result of this node's probes.
type NodeHealth struct {
	// Down nodes get no packets. Held nodes count as up, because half of the live nodes were lost at once.
	// Narrow nodes answer short probes, but not probes as long as the MTU.
	Down, Held, Narrow []string
	// Silent are nodes with silent agents, each with the start of the silence.
	Silent []string
	// CutOff is true if at least half of the nodes were lost at once, so that this node is probably isolated.
	CutOff bool
	// Lossy is true if the paths to more than half of the nodes lose packets.
	Lossy bool
}

// Bounds of a report, which keep it below 64 KiB. Lengths are in bytes.
const (
	maxInterfaces = 32
	maxSessions   = 64
	maxExceptions = 32
	maxDuplicates = 32
	maxAnswering  = 256
	// maxItemMessage bounds the message of an interface, session or VIP, maxMessage that of a condition.
	maxItemMessage = 160
	maxMessage     = 1024
	// maxListed is the number of problems in a condition's message.
	maxListed = 5
)

// Build returns the status of an LBNodeReport for an observation. Unchanged conditions retain their transition
// time; the others get now.
func Build(o Observation, report *millracev1beta1.LBNodeReport, now metav1.Time) millracev1beta1.LBNodeReportStatus {
	previous := &report.Status
	counts, exceptions := vips(o)
	status := millracev1beta1.LBNodeReportStatus{
		Version:    o.Version,
		Interfaces: interfaces(o.Interfaces),
		XDPModes:   xdpModes(o.Interfaces),
		Sessions:   sessions(o.Sessions, previous.Sessions),
		VIPs:       counts,
		Exceptions: exceptions,

		Duplicates:           duplicates(o.Duplicates),
		L2VIPs:               formatVIPs(o.Answering),
		ServicesOverCapacity: overCapacity(o.Problems),
		TunnelKeys:           o.TunnelKey.keys(),
		Conditions:           slices.Clone(previous.Conditions),
	}
	for _, condition := range conditions(o) {
		condition.ObservedGeneration = report.Generation
		condition.LastTransitionTime = now
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if _, unreached := nodesReached(o); !unreached {
		meta.RemoveStatusCondition(&status.Conditions, millracev1beta1.ConditionNodesReachable)
	}
	if o.Unready.Endpoints == 0 {
		meta.RemoveStatusCondition(&status.Conditions, millracev1beta1.ConditionEndpointsHealthy)
	}
	if len(o.Held) == 0 {
		meta.RemoveStatusCondition(&status.Conditions, millracev1beta1.ConditionRemovalsApplied)
	}
	return status
}

func formatVIPs(vips []netip.Addr) (formatted []string) {
	for _, vip := range vips[:min(len(vips), maxAnswering)] {
		formatted = append(formatted, vip.String())
	}
	return formatted
}

func interfaces(observed []millracev1beta1.InterfaceStatus) []millracev1beta1.InterfaceStatus {
	result := slices.Clone(observed)
	if len(result) > maxInterfaces {
		slices.SortStableFunc(result, func(a, b millracev1beta1.InterfaceStatus) int {
			return compareBool(a.XDPMode != millracev1beta1.XDPNone, b.XDPMode != millracev1beta1.XDPNone)
		})
		result = result[:maxInterfaces]
	}
	for i := range result {
		result[i].Message = cut(result[i].Message, maxItemMessage)
	}
	return result
}

func xdpModes(uplinks []millracev1beta1.InterfaceStatus) string {
	modes := map[string]struct{}{}
	for _, uplink := range uplinks {
		modes[string(uplink.XDPMode)] = struct{}{}
	}
	return strings.Join(slices.Sorted(maps.Keys(modes)), ",")
}

// sessions returns the observed sessions. A session that is down cycles through Idle, Active and OpenSent at
// every attempt: such a state is reported only together with another change, so that an unreachable router does
// not cause an API write per attempt.
func sessions(observed, previous []millracev1beta1.SessionStatus) []millracev1beta1.SessionStatus {
	result := slices.Clone(observed)
	if len(result) > maxSessions {
		slices.SortStableFunc(result, func(a, b millracev1beta1.SessionStatus) int {
			return compareBool(a.State == millracev1beta1.SessionEstablished, b.State == millracev1beta1.SessionEstablished)
		})
		result = result[:maxSessions]
	}
	for i := range result {
		session := &result[i]
		session.Message = cut(session.Message, maxItemMessage)
		if session.BFD != nil {
			session.BFD = session.BFD.DeepCopy()
			session.BFD.Message = cut(session.BFD.Message, maxItemMessage)
		}
		at := slices.IndexFunc(previous, func(p millracev1beta1.SessionStatus) bool { return p.Peer == session.Peer })
		if at < 0 {
			continue
		}
		same := *session
		same.State = previous[at].State
		if session.State != millracev1beta1.SessionEstablished &&
			same.State != millracev1beta1.SessionEstablished && sameSession(same, previous[at]) {
			*session = same
		}
	}
	return result
}

func sameSession(a, b millracev1beta1.SessionStatus) bool {
	return a.Peer == b.Peer && a.Address == b.Address && a.State == b.State &&
		a.Message == b.Message && a.Since.Equal(b.Since) && equality.Semantic.DeepEqual(a.BFD, b.BFD)
}

// exceptional are the reasons reported per VIP: faults of the node or its sessions. Other reasons concern
// objects and are the same on many nodes.
var exceptional = []string{
	announce.ReasonOccupied, announce.ReasonDuplicate, announce.ReasonNotAttached, announce.ReasonNotProgrammed, announce.ReasonNoNextHop,
	millracev1beta1.ReasonNotEstablished,
}

func vips(o Observation) (millracev1beta1.VIPCounts, []millracev1beta1.VIPException) {
	counts := millracev1beta1.VIPCounts{Programmed: int32(min(o.Programmed, math.MaxInt32))}
	var exceptions []millracev1beta1.VIPException
	withheld := map[string]int32{}
	established := o.Established()
	for _, decision := range o.Decisions {
		decision = decision.Observed(established)
		if len(decision.Peers) > 0 {
			counts.Announced++
			continue
		}
		withheld[decision.Reason]++
		if len(exceptions) < maxExceptions && slices.Contains(exceptional, decision.Reason) {
			exceptions = append(exceptions, millracev1beta1.VIPException{
				Address: decision.VIP.String(), Reason: decision.Reason, Message: cut(decision.Message, maxItemMessage),
			})
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(withheld)) {
		counts.Withheld = append(counts.Withheld, millracev1beta1.WithheldCount{Reason: reason, Count: withheld[reason]})
	}
	return counts, exceptions
}

// Established returns the address families of the established sessions.
func (o *Observation) Established() announce.Sessions {
	established := announce.Sessions{}
	for _, session := range o.Sessions {
		if session.State == millracev1beta1.SessionEstablished {
			established[session.Peer] = announce.Carried{
				IPv4: !slices.Contains(session.Withheld, millracev1beta1.FamilyIPv4),
				IPv6: !slices.Contains(session.Withheld, millracev1beta1.FamilyIPv6),
			}
		}
	}
	return established
}

func cut(text string, most int) string {
	const more = " ..."
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(more)], "") + more
}

func compareBool(a, b bool) int {
	number := map[bool]int{true: 1}
	return cmp.Compare(number[a], number[b])
}
