// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// claimant is a Service that has a VIP.
type claimant struct {
	name    ServiceName
	service *corev1.Service
	// ports are those that its claim lists.
	ports []millracev1beta1.ClaimedPort
	// release is nil where it keeps the VIP.
	release *millracev1beta1.ClaimRelease
}

// releaseOf returns how far a VIP is given up: as far as the last of its claimants; empty where
// one keeps it.
func releaseOf(claimants []claimant) (phase millracev1beta1.ReleasePhase) {
	for _, claimant := range claimants {
		switch {
		case claimant.release == nil:
			return ""
		case claimant.release.Phase == millracev1beta1.ReleaseWithdrawn && phase == "":
			phase = millracev1beta1.ReleaseWithdrawn
		case claimant.release.Phase != millracev1beta1.ReleaseWithdrawn:
			phase = millracev1beta1.ReleaseDraining
		}
	}
	return phase
}

// claimants returns the Services that a VIP serves, in the order in which they
// claimed it. Claims without a UID come last: they are manual, and
// the operator has not given them the address yet.
func (b *builder) claimants(vip *millracev1beta1.VIP, services map[ServiceName]*corev1.Service) []claimant {
	reference := ObjectReference{Kind: "VIP", Name: vip.Name}
	var given, manual []claimant
	for i, claim := range vip.Spec.Claims {
		name := ServiceName{claim.Namespace, claim.Name}
		service := services[name]
		known := func(other claimant) bool { return other.name == name }
		flaw := mismatch(&claim, service)
		switch {
		case claim.UID == "" && (service == nil || service.Spec.Type != corev1.ServiceTypeLoadBalancer):
			// The address is reserved for a Service to come.
		case flaw != "":
			b.problem(reference, ReasonServiceMismatch, "spec.claims[%d]: Service %s %s", i, name, flaw)
		case slices.ContainsFunc(given, known) || slices.ContainsFunc(manual, known):
		case claim.UID != "":
			given = append(given, claimant{name, service, claim.Ports, claim.Release})
		default:
			manual = append(manual, claimant{name, service, claim.Ports, claim.Release})
		}
	}
	return append(given, manual...)
}

// mismatch returns why a claim does not hold for the Service that it names, as the end of a
// sentence; empty where it holds.
//
// Agents do not know which class the operator serves, nor whether it is the default load balancer.
// It gives addresses to its Services only, and writes their UID into the claim and their class onto
// the Service: that is the proof. A manual claim proves nothing, so it holds for our class alone.
func mismatch(claim *millracev1beta1.VIPClaim, service *corev1.Service) string {
	if service == nil {
		return "does not exist"
	}
	class := deref(service.Spec.LoadBalancerClass, "")
	switch {
	case claim.UID != "" && claim.UID != string(service.UID):
		return fmt.Sprintf("has the uid %s, the claim is for %s", service.UID, claim.UID)
	case service.Spec.Type != corev1.ServiceTypeLoadBalancer:
		return fmt.Sprintf("is of type %s, not LoadBalancer", service.Spec.Type)
	case class == "" && claim.UID == "":
		return fmt.Sprintf("has no loadBalancerClass: set it to %s, or make the operator the default with --default-class",
			millracev1beta1.Class)
	case class != "" && class != millracev1beta1.Class && (claim.UID == "" || !desired.HasClassOfAddress(service)):
		return fmt.Sprintf("has the loadBalancerClass %s, not %s", class, millracev1beta1.Class)
	default:
		return ""
	}
}

// portOwners returns which Service each port of a VIP is served for: the first
// whose claim lists it, else the first that has it. A listed port that its
// Service does not have any more is as good as not listed.
func portOwners(vip netip.Addr, claimants []claimant) map[forwarding.FrontendKey]ServiceName {
	owners := map[forwarding.FrontendKey]ServiceName{}
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

func (c *claimant) lists(key forwarding.FrontendKey) bool {
	return slices.ContainsFunc(c.ports, func(port millracev1beta1.ClaimedPort) bool {
		protocol, _ := protocolNumber(port.Protocol)
		return port.Port == int32(key.Port) && protocol == key.Protocol
	})
}

// frontendKey returns the frontend of a Service's port, unless it is one that
// cannot be served.
func frontendKey(vip netip.Addr, port *corev1.ServicePort) (forwarding.FrontendKey, bool) {
	protocol, supported := protocolNumber(port.Protocol)
	if !supported || port.Port < 1 || port.Port > 65535 {
		return forwarding.FrontendKey{}, false
	}
	return forwarding.FrontendKey{VIP: vip, Port: uint16(port.Port), Protocol: protocol}, true
}
