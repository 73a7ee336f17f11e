// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// claimant is a Service that has a VIP.
type claimant struct {
	name    ServiceName
	service *corev1.Service
	// ports are those that its claim lists.
	ports []millracev1alpha1.ClaimedPort
}

// claimants returns the Services that a VIP serves, in the order in which they
// claimed it. Claims without a UID come last: somebody wrote them by hand, and
// the operator has not given them the address yet.
func (b *builder) claimants(vip *millracev1alpha1.VIP, services map[ServiceName]*corev1.Service) []claimant {
	reference := ObjectReference{Kind: "VIP", Name: vip.Name}
	var given, byHand []claimant
	for i, claim := range vip.Spec.Claims {
		name := ServiceName{claim.Namespace, claim.Name}
		service := services[name]
		known := func(other claimant) bool { return other.name == name }
		switch {
		case service == nil:
			b.problem(reference, ReasonServiceMismatch, "spec.claims[%d]: Service %s does not exist", i, name)
		case claim.UID != "" && claim.UID != string(service.UID):
			b.problem(reference, ReasonServiceMismatch,
				"spec.claims[%d]: Service %s has the uid %s, the claim is for %s", i, name, service.UID, claim.UID)
		case service.Spec.Type != corev1.ServiceTypeLoadBalancer:
			b.problem(reference, ReasonServiceMismatch,
				"spec.claims[%d]: Service %s is of type %s, not LoadBalancer", i, name, service.Spec.Type)
		case slices.ContainsFunc(given, known) || slices.ContainsFunc(byHand, known):
		case claim.UID != "":
			given = append(given, claimant{name, service, claim.Ports})
		default:
			byHand = append(byHand, claimant{name, service, claim.Ports})
		}
	}
	return append(given, byHand...)
}

// portOwners returns which Service each port of a VIP is served for: the first
// whose claim lists it, else the first that has it. A listed port that its
// Service does not have any more is as good as not listed.
func portOwners(vip netip.Addr, claimants []claimant) map[program.FrontendKey]ServiceName {
	owners := map[program.FrontendKey]ServiceName{}
	for _, onlyListed := range []bool{true, false} {
		for _, claimant := range claimants {
			for i := range claimant.service.Spec.Ports {
				key, ok := frontendKey(vip, &claimant.service.Spec.Ports[i])
				if !ok || onlyListed && !claimant.lists(key) {
					continue
				}
				if _, taken := owners[key]; !taken {
					owners[key] = claimant.name
				}
			}
		}
	}
	return owners
}

func (c *claimant) lists(key program.FrontendKey) bool {
	return slices.ContainsFunc(c.ports, func(port millracev1alpha1.ClaimedPort) bool {
		protocol, _ := protocolNumber(port.Protocol)
		return port.Port == int32(key.Port) && protocol == key.Protocol
	})
}

// frontendKey returns the frontend of a Service's port, unless it is one that
// cannot be served.
func frontendKey(vip netip.Addr, port *corev1.ServicePort) (program.FrontendKey, bool) {
	protocol, supported := protocolNumber(port.Protocol)
	if !supported || port.Port < 1 || port.Port > 65535 {
		return program.FrontendKey{}, false
	}
	return program.FrontendKey{VIP: vip, Port: uint16(port.Port), Protocol: protocol}, true
}
