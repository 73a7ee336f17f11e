// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"
	"slices"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// VIP converts a VIP for plans.
func VIP(address netip.Addr, object *millracev1beta1.VIP) ipam.VIP {
	claims := make([]ipam.Claim, 0, len(object.Spec.Claims))
	for _, claim := range object.Spec.Claims {
		claims = append(claims, ipam.Claim{
			Owner:      ipam.Owner{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			SharingKey: claim.SharingKey,
			Ports:      ClaimedPorts(claim),
			Releasing:  claim.Release != nil,
		})
	}
	return ipam.VIP{
		Address: address, Pool: object.Spec.Pool, CreatedAt: object.CreationTimestamp.Time, Claims: claims,
	}
}

// ClaimedPorts returns the ports of a claim, sorted.
func ClaimedPorts(claim millracev1beta1.VIPClaim) []ipam.Port {
	ports := make([]ipam.Port, 0, len(claim.Ports))
	for _, port := range claim.Ports {
		ports = append(ports, ipam.Port{Number: uint16(port.Port), Protocol: string(port.Protocol)})
	}
	slices.SortFunc(ports, ipam.Port.Compare)
	return ports
}
