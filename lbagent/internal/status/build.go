// SPDX-License-Identifier: Apache-2.0

// Package status writes what the agent observed: which boot its node is in into the
// LBNode, which all agents watch, and everything else into the LBNodeReport.
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
	"github.com/millrace-lb/millrace/lbagent/internal/duplicate"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/readiness"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
)

// Observation is what the agent observed, all of it at one moment.
type Observation struct {
	Version string
	// Nodes is how many there are in the cluster.
	Nodes      int
	Interfaces []millracev1beta1.InterfaceStatus
	// Lacking says which uplinks must have the programs and have not; other uplinks may be
	// without.
	Lacking  []string
	Sessions []millracev1beta1.SessionStatus
	// Programmed is the number of VIPs that are in the maps.
	Programmed int
	// Decisions are about the VIPs that the node is to announce, sorted by address.
	Decisions []announce.Decision
	Problems  []model.Problem
	// ProgramError is why the maps could not be written, if so.
	ProgramError error
	// Host is what on the host breaks traffic, a sentence each.
	Host []string
	// OtherUplink is true while packets of other nodes are dropped because they come in by an
	// uplink on which those nodes are not reached.
	OtherUplink bool
	// TunnelKey is nil until the agent has looked.
	TunnelKey *TunnelKey
	// Watch is what probes of other nodes tell.
	Watch Watch
	// Held are objects that were removed many at once, and count as present.
	Held []removalguard.Held
	// Duplicates are hosts with the address of a VIP, sorted by address.
	Duplicates []duplicate.Holder
	// Unready are endpoints that are served though they are not ready.
	Unready readiness.Served
	// L2 is where the node can answer for VIPs, if that is known.
	L2      []millracev1beta1.L2Reach
	L2Known bool
	// Answering are the VIPs that the node answers for on its links, sorted.
	Answering []netip.Addr
	// Forwards is true where the last pass left in the maps what the node forwards by,
	// even if single writes failed.
	Forwards bool
}

// Watch is which nodes do not answer this node's probes, by name.
type Watch struct {
	// Down get no packets. Held count as up: half of the nodes that were up were lost at once.
	// Narrow answer short probes, but not those as long as the MTU.
	Down, Held, Narrow []string
	// Silent are the nodes whose agents are silent, each with the time since when.
	Silent []string
	// CutOff is true if half of the nodes or more were lost at once: this node is rather cut off.
	CutOff bool
	// Lossy is true if the paths to more than half of the nodes lose packets.
	Lossy bool
}

// Bounds of a report, so that an object of the API server stays small whatever the
// node meets: below 64 KiB. The lengths are in bytes.
const (
	maxInterfaces = 32
	maxSessions   = 64
	maxExceptions = 32
	maxDuplicates = 32
	maxAnswering  = 256
	// maxItemMessage is the longest message of an interface, a session or a VIP;
	// maxMessage that of a condition.
	maxItemMessage = 160
	maxMessage     = 1024
	// listed is how many problems a condition's message tells in full.
	listed = 5
)

// Build returns the status of an LBNodeReport that tells an observation. Times of
// transitions are taken over where nothing changed; now is that of the others.
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

		Duplicates:    duplicates(o.Duplicates),
		Answering:     answering(o.Answering),
		UnfitServices: overCapacity(o.Problems),
		TunnelKeys:    o.TunnelKey.keys(),
		Conditions:    slices.Clone(previous.Conditions),
	}
	for _, condition := range conditions(o) {
		condition.ObservedGeneration = report.Generation
		condition.LastTransitionTime = now
		meta.SetStatusCondition(&status.Conditions, condition)
	}
	if _, unreached := nodesReached(o); !unreached {
		meta.RemoveStatusCondition(&status.Conditions, millracev1beta1.ConditionNodesReached)
	}
	if o.Unready.Endpoints == 0 {
		meta.RemoveStatusCondition(&status.Conditions, millracev1beta1.ConditionReadinessTrusted)
	}
	if len(o.Held) == 0 {
		meta.RemoveStatusCondition(&status.Conditions, millracev1beta1.ConditionObjectsPresent)
	}
	return status
}

func answering(vips []netip.Addr) (told []string) {
	for _, vip := range vips[:min(len(vips), maxAnswering)] {
		told = append(told, vip.String())
	}
	return told
}

// interfaces are the uplinks, those first that keep the node from serving.
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

// xdpModes names each mode of the uplinks once.
func xdpModes(uplinks []millracev1beta1.InterfaceStatus) string {
	modes := map[string]struct{}{}
	for _, uplink := range uplinks {
		modes[string(uplink.XDPMode)] = struct{}{}
	}
	return strings.Join(slices.Sorted(maps.Keys(modes)), ",")
}

// sessions are the observed ones. A session that is not established goes round
// Idle, Active and OpenSent at every attempt: its state is told again only
// together with something that says more, so that a router that is away does
// not cost an API write per attempt.
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

// exceptional are the reasons for which a VIP is an exception: the fault is the node's, or
// that of its sessions. The other reasons are those of Services, VIPs and advertisements,
// the same on many nodes.
var exceptional = []string{
	announce.ReasonOccupied, announce.ReasonDuplicate, announce.ReasonNotAttached, announce.ReasonNotProgrammed, announce.ReasonNoNextHop,
	millracev1beta1.ReasonNotEstablished,
}

// vips counts the VIPs of an observation, and tells the first exceptions.
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

// Established has what established sessions carry.
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

// cut shortens a text to a number of bytes.
func cut(text string, most int) string {
	const more = " ..."
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(more)], "") + more
}

// compareBool sorts false before true.
func compareBool(a, b bool) int {
	number := map[bool]int{true: 1}
	return cmp.Compare(number[a], number[b])
}
