// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// configuration returns objects that are not, or not fully, in use.
func configuration(in *Input) []Problem {
	var pools, peers, advertisements, vips []Problem
	for i := range in.Pools {
		pool := &in.Pools[i]
		pools = append(pools, unready("VIPPool", pool.ObjectMeta, pool.Status.Conditions)...)
	}
	for i := range in.Peers {
		peer := &in.Peers[i]
		peers = append(peers, unready("LBPeer", peer.ObjectMeta, peer.Status.Conditions)...)
	}
	for i := range in.Advertisements {
		advertisement := &in.Advertisements[i]
		advertisements = append(advertisements, unready("VIPAdvertisement", advertisement.ObjectMeta, advertisement.Status.Conditions)...)
	}
	for i := range in.VIPs {
		// The operator creates most VIPs itself, and then writes no condition.
		if vip := &in.VIPs[i]; meta.IsStatusConditionFalse(vip.Status.Conditions, millracev1beta1.ConditionReady) {
			vips = append(vips, unready("VIP", vip.ObjectMeta, vip.Status.Conditions)...)
		}
	}
	return slices.Concat(sorted(pools), sorted(peers), sorted(advertisements), sorted(vips))
}

// unready requires the condition Ready for the current generation and all addresses of a pool.
func unready(kind string, object metav1.ObjectMeta, conditions []metav1.Condition) []Problem {
	ready := meta.FindStatusCondition(conditions, millracev1beta1.ConditionReady)
	switch {
	case ready == nil || ready.ObservedGeneration != 0 && ready.ObservedGeneration < object.Generation:
		return []Problem{{
			Kind: kind, Name: object.Name, Reason: ReasonNotObserved,
			Message: "the operator has not observed its current generation; if this persists, check the operator's log",
		}}
	case ready.Status != metav1.ConditionTrue, limits(ready.Reason):
		return []Problem{{Kind: kind, Name: object.Name, Reason: ready.Reason, Message: ready.Message, Since: ready.LastTransitionTime.Time}}
	default:
		return nil
	}
}

// limits reports whether a ready pool's reason excludes some of its addresses.
func limits(reason string) bool {
	return reason == millracev1beta1.ReasonPoolOverlap || reason == millracev1beta1.ReasonOccupied ||
		reason == millracev1beta1.ReasonOverlapsEndpoints
}

// ours decides by the class or, for other classes, by the operator's condition.
func ours(service *corev1.Service) bool {
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	if class := service.Spec.LoadBalancerClass; class != nil && *class == millracev1beta1.Class {
		return true
	}
	return meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionAddressAssigned) != nil
}

func (l *lookup) waiting() []Problem {
	var problems []Problem
	for i := range l.in.Services {
		service := &l.in.Services[i]
		if !ours(service) || service.DeletionTimestamp != nil {
			continue
		}
		problem := Problem{Kind: "Service", Namespace: service.Namespace, Name: service.Name}
		assigned := meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionAddressAssigned)
		switch {
		case assigned == nil:
			problem.Reason = ReasonNotObserved
			problem.Message = "the operator has not observed it yet; if this persists, check the operator's log"
		case assigned.Status != metav1.ConditionTrue:
			problem.Reason, problem.Message, problem.Since = assigned.Reason, assigned.Message, assigned.LastTransitionTime.Time
		default:
			continue
		}
		problems = append(problems, problem)
	}
	return sorted(problems)
}

// certificates returns problems that the gateway reports on the Services of its proxies. Tenants can write Services
// in their namespaces, so one outside the namespace of Millrace is evidence of its own namespace only.
func (l *lookup) certificates() []Problem {
	var problems []Problem
	for i := range l.in.Services {
		service := &l.in.Services[i]
		if !ours(service) {
			continue
		}
		for _, found := range model.DecodeCertificateProblems(service.Annotations[model.AnnotationCertificateProblems]) {
			problem := Problem{Kind: "Secret", Namespace: found.Namespace, Name: found.Secret, Reason: ReasonCertificate, Message: found.Message}
			if service.Namespace != l.in.Namespace && service.Namespace != found.Namespace {
				problem.Kind, problem.Namespace, problem.Name = "Service", service.Namespace, service.Name
				problem.Message = fmt.Sprintf("Secret %s/%s: %s", found.Namespace, found.Secret, found.Message)
			}
			if !slices.Contains(problems, problem) {
				problems = append(problems, problem)
			}
		}
	}
	return sorted(problems)
}

// unserved returns VIPs that no node announces or that disagree with their Service.
func (l *lookup) unserved(vips []VIP) []Problem {
	var problems []Problem
	for _, vip := range vips {
		problems = append(problems, l.disagreement(l.vips[vip.Address])...)
		if !vip.InUse() {
			continue
		}
		if len(vip.AnnouncedBy) > 0 {
			problems = append(problems, idle(vip)...)
			continue
		}
		if l.in.lacks("EndpointSlices") {
			continue
		}
		if reason, message := l.notAnnouncedReason(vip); reason != "" {
			problem := Problem{Kind: "VIP", Name: vip.Address, Reason: reason, Message: message}
			if reason == ReasonNoReadyEndpoint || vip.unannounced() {
				problem.common = reason
			}
			problems = append(problems, problem)
		}
	}
	return problems
}

// announcedByOneNode returns VIPs that only one node announces although others are selected and could
// forward to an endpoint. VIPs of the same node with the same cause are merged.
func (l *lookup) announcedByOneNode(vips []VIP) []Problem {
	type cause struct{ node, reason, message string }
	var problems []Problem
	more := map[cause]int{}
	at := map[cause]int{}
	for _, vip := range vips {
		if vip.Announcers() != 1 || !slices.ContainsFunc(vip.Services, spreads) {
			continue
		}
		others := slices.DeleteFunc(slices.Clone(vip.WithheldBy), isUnselected)
		if unknown := len(l.in.Agents.Responses) - 1 - nodesOf(vip.WithheldBy); unknown > 0 && len(others) == 0 {
			others = []Withheld{{Message: "the VIP is unknown there", Nodes: make([]string, unknown)}}
		}
		if len(others) == 0 {
			continue
		}
		why := cause{vip.AnnouncedBy[0].Nodes[0], others[0].Reason, others[0].Message}
		if _, isReported := at[why]; isReported {
			more[why]++
			continue
		}
		at[why] = len(problems)
		problems = append(problems, Problem{
			Kind: "VIP", Name: vip.Address, Reason: ReasonSingleAnnouncer,
			Message: fmt.Sprintf("only %s of %d selected nodes announces it; %s",
				why.node, 1+nodesOf(others), withheld(others)),
		})
	}
	for why, count := range more {
		problems[at[why]].Message += fmt.Sprintf("; the same applies to %d more VIPs", count)
	}
	return problems
}

// spreads reports whether every node can forward packets of the Service.
func spreads(service Service) bool {
	return service.TrafficPolicy == string(corev1.ServiceExternalTrafficPolicyCluster) && service.Ready > 0
}

// isUnselected reports whether nodes do not announce a VIP because no object selects them for it.
func isUnselected(by Withheld) bool {
	return by.Reason == millracev1beta1.ReasonNotSelected || by.Reason == millracev1beta1.ReasonNoPeer
}

// idle returns Services without a ready endpoint on a VIP that is announced for other Services.
func idle(vip VIP) []Problem {
	var problems []Problem
	for _, service := range vip.Services {
		if service.TrafficPolicy != "" && service.Ready == 0 && len(vip.Services) > 1 {
			problems = append(problems, Problem{Kind: "VIP", Name: vip.Address, Reason: ReasonNoReadyEndpoint, common: "other Services served", Message: fmt.Sprintf(
				"no ready endpoint of %s/%s; the other Services of the VIP are served", service.Namespace, service.Name)})
		}
	}
	return problems
}

// notAnnouncedReason returns the closest cause, or nothing if agents did not answer.
func (l *lookup) notAnnouncedReason(vip VIP) (reason, message string) {
	ready := 0
	var names []string
	for _, service := range vip.Services {
		ready += service.Ready
		names = append(names, service.Namespace+"/"+service.Name)
	}
	noAnnouncer := "no node announces it: "
	if unknown := len(l.nodes) - len(l.in.Agents.Responses); unknown > 0 {
		noAnnouncer = fmt.Sprintf("of the %d nodes that answered, no node announces it: ", len(l.in.Agents.Responses))
	}
	switch {
	case ready == 0:
		return ReasonNoReadyEndpoint, "no node announces it: no ready endpoint of " + strings.Join(names, ", ")
	case vip.NotAnnounced != "" && len(l.in.Agents.Responses) == 0:
		return ReasonNotAnnounced, vip.NotAnnounced
	case vip.unannounced():
		return ReasonNotAnnounced, "no node announces it; millrace why " + names[0] + " shows the history"
	case l.in.Sole != "":
		return "", ""
	case len(l.in.Peers) == 0:
		return ReasonNotAnnounced, "no node announces it: there is no LBPeer"
	case len(l.in.Advertisements) == 0:
		return ReasonNotAnnounced, "no node announces it: there is no VIPAdvertisement"
	case len(l.in.Agents.Responses) == 0:
		return "", ""
	case len(vip.WithheldBy) == 0:
		return ReasonNotAnnounced, noAnnouncer + "no node has programmed it"
	}
	return ReasonNotAnnounced, noAnnouncer + withheld(vip.WithheldBy)
}

// notAnnounced returns the message of a condition Announced that is False, or "". Without rights to list VIPs,
// the Service's condition applies, which has a message for each family.
func notAnnounced(vip *millracev1beta1.VIP, service *corev1.Service) string {
	condition := meta.FindStatusCondition(vip.Status.Conditions, millracev1beta1.ConditionAnnounced)
	if condition != nil && condition.Status == metav1.ConditionFalse {
		return condition.Message
	}
	whole := meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionServiceAnnounced)
	if vip.UID != "" || whole == nil || whole.Status != metav1.ConditionFalse {
		return ""
	}
	family := string(millracev1beta1.FamilyIPv4)
	if strings.Contains(vip.Spec.Address, ":") {
		family = string(millracev1beta1.FamilyIPv6)
	}
	for part := range strings.SplitSeq(whole.Message, "; ") {
		if message, found := strings.CutPrefix(part, family+": "); found {
			return message
		}
	}
	return ""
}

func withheld(by []Withheld) string {
	text := cmp.Or(by[0].Message, by[0].Reason, "the reason is unknown")
	if name := by[0].Nodes[0]; name != "" {
		text = name + ": " + text
	}
	if nodes := nodesOf(by); nodes > 1 {
		text += fmt.Sprintf(" (and on %d more)", nodes-1)
	}
	return text
}

func nodesOf(by []Withheld) int {
	nodes := 0
	for _, group := range by {
		nodes += len(group.Nodes)
	}
	return nodes
}

func (l *lookup) disagreement(vip *millracev1beta1.VIP) []Problem {
	var problems []Problem
	for _, claim := range vip.Spec.Claims {
		service := l.claimed(claim)
		problem := Problem{Kind: "VIP", Name: vip.Spec.Address}
		switch {
		case service == nil && claim.UID == "":
			// Reserved manually for a Service that may be created later.
			continue
		case service == nil:
			problem.Reason = ReasonServiceNotFound
			problem.Message = fmt.Sprintf("claimed by Service %s/%s, which was deleted; the operator removes the claim", claim.Namespace, claim.Name)
		case !hasIngress(service, vip.Spec.Address):
			problem.Reason = ReasonNotInStatus
			problem.Message = fmt.Sprintf("missing in status.loadBalancer of Service %s/%s, which has the VIP", claim.Namespace, claim.Name)
		default:
			continue
		}
		problem.common = problem.Reason
		problems = append(problems, problem)
	}
	return problems
}

func hasIngress(service *corev1.Service, address string) bool {
	return slices.ContainsFunc(service.Status.LoadBalancer.Ingress, func(ingress corev1.LoadBalancerIngress) bool {
		return ingress.IP == address
	})
}

func sorted(problems []Problem) []Problem {
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return problems
}
