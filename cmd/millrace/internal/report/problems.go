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

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// configuration finds pools, peers, advertisements and VIPs that are not in use.
func configuration(in *Input) []Problem {
	var pools, peers, advertisements, vips []Problem
	for i := range in.Pools {
		pool := &in.Pools[i]
		pools = append(pools, unready("IPPool", pool.ObjectMeta, pool.Status.Conditions)...)
	}
	for i := range in.Peers {
		peer := &in.Peers[i]
		peers = append(peers, unready("BGPPeer", peer.ObjectMeta, peer.Status.Conditions)...)
	}
	for i := range in.Advertisements {
		advertisement := &in.Advertisements[i]
		advertisements = append(advertisements, unready("BGPAdvertisement", advertisement.ObjectMeta, advertisement.Status.Conditions)...)
	}
	for i := range in.VIPs {
		// The operator makes most VIPs itself and need not look at them again.
		if vip := &in.VIPs[i]; meta.IsStatusConditionFalse(vip.Status.Conditions, millracev1alpha1.ConditionReady) {
			vips = append(vips, unready("VIP", vip.ObjectMeta, vip.Status.Conditions)...)
		}
	}
	return slices.Concat(sorted(pools), sorted(peers), sorted(advertisements), sorted(vips))
}

// unready compares the condition Ready with what is wanted of it: true, and
// about the object as it is now.
func unready(kind string, object metav1.ObjectMeta, conditions []metav1.Condition) []Problem {
	ready := meta.FindStatusCondition(conditions, millracev1alpha1.ConditionReady)
	switch {
	case ready == nil || ready.ObservedGeneration != 0 && ready.ObservedGeneration < object.Generation:
		return []Problem{{
			Kind: kind, Name: object.Name, Reason: ReasonNotObserved,
			Message: "the operator has not looked at it as it is now; if that lasts, see the operator's log",
		}}
	case ready.Status != metav1.ConditionTrue:
		return []Problem{{Kind: kind, Name: object.Name, Reason: ready.Reason, Message: ready.Message}}
	default:
		return nil
	}
}

// ours tells whether Millrace serves a Service: by its class, or, without a
// class, by the condition that the operator has put on it.
func ours(service *corev1.Service) bool {
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	if class := service.Spec.LoadBalancerClass; class != nil {
		return *class == millracev1alpha1.Class
	}
	return meta.FindStatusCondition(service.Status.Conditions, millracev1alpha1.ConditionAddressAssigned) != nil
}

// waiting finds Services that wait for an address.
func (l *lookup) waiting() []Problem {
	var problems []Problem
	for i := range l.in.Services {
		service := &l.in.Services[i]
		if !ours(service) || service.DeletionTimestamp != nil {
			continue
		}
		problem := Problem{Kind: "Service", Namespace: service.Namespace, Name: service.Name}
		assigned := meta.FindStatusCondition(service.Status.Conditions, millracev1alpha1.ConditionAddressAssigned)
		switch {
		case assigned == nil:
			problem.Reason = ReasonNotObserved
			problem.Message = "the operator has not looked at it yet; if that lasts, see the operator's log"
		case assigned.Status != metav1.ConditionTrue:
			problem.Reason, problem.Message = assigned.Reason, assigned.Message
		default:
			continue
		}
		problems = append(problems, problem)
	}
	return sorted(problems)
}

// unserved finds VIPs that belong to a Service and that no node announces, and
// those about which the Service and the VIP disagree.
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
		reason, message := l.whyNot(vip)
		problems = append(problems, Problem{Kind: "VIP", Name: vip.Address, Reason: reason, Message: message})
	}
	return problems
}

// idle finds Services without a ready endpoint on a VIP that is announced for
// others.
func idle(vip VIP) []Problem {
	var problems []Problem
	for _, service := range vip.Services {
		if service.TrafficPolicy != "" && service.Ready == 0 && len(vip.Services) > 1 {
			problems = append(problems, Problem{Kind: "VIP", Name: vip.Address, Reason: ReasonNoEndpoint, Message: fmt.Sprintf(
				"no ready endpoint of %s/%s; the other Services of the VIP are served", service.Namespace, service.Name)})
		}
	}
	return problems
}

// whyNot says why no node announces a VIP, the nearest cause first.
func (l *lookup) whyNot(vip VIP) (reason, message string) {
	ready := 0
	var names []string
	for _, service := range vip.Services {
		ready += service.Ready
		names = append(names, service.Namespace+"/"+service.Name)
	}
	switch {
	case ready == 0:
		return ReasonNoEndpoint, "no node announces it: no ready endpoint of " + strings.Join(names, ", ")
	case len(l.in.Peers) == 0:
		return ReasonNotAnnounced, "no node announces it: there is no BGPPeer"
	case len(l.in.Advertisements) == 0:
		return ReasonNotAnnounced, "no node announces it: there is no BGPAdvertisement"
	case vip.Programmed == 0:
		return ReasonNotAnnounced, "no node announces it: no node has programmed it"
	}
	return ReasonNotAnnounced, "no node announces it: " + withheld(vip.WithheldBy)
}

// withheld names the first node's cause and how many more there are.
func withheld(nodes []Withheld) string {
	first := nodes[0]
	text := first.Node + ": " + cmp.Or(first.Message, first.Reason, "it does not say why")
	if more := len(nodes) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return text
}

func (l *lookup) disagreement(vip *millracev1alpha1.VIP) []Problem {
	var problems []Problem
	for _, claim := range vip.Spec.Claims {
		service := l.claimed(claim)
		problem := Problem{Kind: "VIP", Name: vip.Spec.Address}
		switch {
		case service == nil && claim.UID == "":
			// Reserved by hand for a Service that may be made later.
			continue
		case service == nil:
			problem.Reason = ReasonServiceGone
			problem.Message = fmt.Sprintf("claimed by Service %s/%s, which is gone; the operator takes the claim back", claim.Namespace, claim.Name)
		case !hasIngress(service, vip.Spec.Address):
			problem.Reason = ReasonNotInStatus
			problem.Message = fmt.Sprintf("not in status.loadBalancer of Service %s/%s, which has it", claim.Namespace, claim.Name)
		default:
			continue
		}
		problems = append(problems, problem)
	}
	return problems
}

func hasIngress(service *corev1.Service, address string) bool {
	return slices.ContainsFunc(service.Status.LoadBalancer.Ingress, func(ingress corev1.LoadBalancerIngress) bool {
		return ingress.IP == address
	})
}

// sorted sorts the problems of one kind of object by its name.
func sorted(problems []Problem) []Problem {
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return problems
}
