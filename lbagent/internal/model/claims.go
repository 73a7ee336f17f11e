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

type claimant struct {
	name    ServiceName
	service *corev1.Service
	ports   []millracev1beta1.ClaimedPort
	// release is nil while the Service retains the VIP.
	release *millracev1beta1.ClaimRelease
}

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

// claimants returns the Services of a VIP in claim order. Claims without a UID come last: they are manual and
// not yet confirmed by the operator.
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
			// The address is reserved for a future Service.
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

// mismatch returns why a claim is invalid for its Service, as the end of a sentence, or "".
//
// Agents do not know the class or the default of the operator. A UID in the claim and a class recorded on the
// Service prove that the operator assigned the address. A manual claim proves nothing and is valid only for
// millrace's own class.
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

// portOwners returns the Service of each port of a VIP: the first whose claim lists the port, else the first
// that has it. A listed port that the Service no longer has is ignored.
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

// frontendKey returns the frontend of a Service's port; false if it cannot be served.
func frontendKey(vip netip.Addr, port *corev1.ServicePort) (forwarding.FrontendKey, bool) {
	protocol, supported := protocolNumber(port.Protocol)
	if !supported || port.Port < 1 || port.Port > 65535 {
		return forwarding.FrontendKey{}, false
	}
	return forwarding.FrontendKey{VIP: vip, Port: uint16(port.Port), Protocol: protocol}, true
}
