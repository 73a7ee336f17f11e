// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VIP represents an assigned or reserved address. Its name is derived from the address, so that the API
// server guarantees uniqueness. A new VIP with another name is rejected; a VIP created by an earlier
// release with another name is kept but not used.
//
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || !isIP(self.spec.address) || (ip(self.spec.address).family() == 4 ? self.metadata.name == self.spec.address : self.metadata.name.matches('^(0|[1-9a-f][0-9a-f]{0,3})(-(0|[1-9a-f][0-9a-f]{0,3})){7}$') && ip(self.metadata.name.replace('-', ':')) == ip(self.spec.address))",optionalOldSelf=true,fieldPath=".spec.address",message="metadata.name must be the address: 203.0.113.80 for 203.0.113.80, 2001-db8-0-0-0-0-0-1 for 2001:db8::1"
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=millrace
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.address`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.claims[0].namespace`
// +kubebuilder:printcolumn:name="Service",type=string,JSONPath=`.spec.claims[0].name`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="L2 Node",type=string,JSONPath=`.status.l2Node`
// +kubebuilder:printcolumn:name="Release",type=string,JSONPath=`.spec.claims[0].release.phase`
// +kubebuilder:printcolumn:name="Problem",type=string,JSONPath=`.status.conditions[?(@.status=="False")].reason`
// +kubebuilder:printcolumn:name="Services",type=string,priority=1,JSONPath=`.status.services`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   VIPSpec   `json:"spec"`
	Status VIPStatus `json:"status,omitempty"`
}

// VIPSpec is an address with its Services.
type VIPSpec struct {
	// Address specifies the IPv4 or IPv6 address in canonical form (RFC 5952).
	//
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip.isCanonical(self)",message="must be an IP address in canonical form"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast()",message="must be unicast: neither multicast, loopback, link-local nor unspecified"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the address of a VIP is immutable"
	Address string `json:"address"`

	// Pool specifies the name of the VIPPool of the address.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool,omitempty"`

	// Claims specifies the Services of the address, in the order of assignment. A claim without a uid
	// reserves the address for a Service of this name. Without claims the address is reserved for any
	// Service that requests it.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	Claims []VIPClaim `json:"claims,omitempty"`

	// ReclaimPolicy specifies what happens when the last Service is deleted: Delete releases the address,
	// unless the VIPPool's policy is Retain; Retain reserves it for a Service of the same name.
	//
	// +optional
	// +kubebuilder:default=Delete
	ReclaimPolicy ReclaimPolicy `json:"reclaimPolicy,omitempty"`
}

// VIPClaim is a Service that has a VIP.
type VIPClaim struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// UID distinguishes a Service from a later one with the same name. It is empty in a manual claim, and
	// in the claim of a deleted Service on a retained VIP. The operator sets it when a Service with this
	// name is created.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid,omitempty"`
	// SharingKey is the sharing key of the Service (annotation millrace.io/sharing-key). Services with the
	// same key can share the VIP.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SharingKey string `json:"sharingKey,omitempty"`
	// Ports are the ports of the VIP that belong to this Service, if the VIP is shared or can be. A port
	// that no claim lists belongs to the first claim whose Service has the port.
	//
	// +optional
	// +listType=map
	// +listMapKey=port
	// +listMapKey=protocol
	Ports []ClaimedPort `json:"ports,omitempty"`
	// Release is set by the operator while the Service releases the VIP, because it is deleted or has
	// another address.
	//
	// +optional
	Release *ClaimRelease `json:"release,omitempty"`
}

// ClaimRelease is the progress of releasing a VIP. The VIP's progress is that of its last Service.
type ClaimRelease struct {
	Phase ReleasePhase `json:"phase"`
	// Since is the start of the phase.
	Since metav1.MicroTime `json:"since"`
}

// ReleasePhase is a step of releasing a VIP. The claim is removed after the last one.
//
// +kubebuilder:validation:Enum=Draining;Withdrawn
type ReleasePhase string

// Phases of a release, in their order.
const (
	// ReleaseDraining: nodes announce the VIP with the community GRACEFUL_SHUTDOWN (RFC 8326). Existing and
	// new connections are served.
	ReleaseDraining ReleasePhase = "Draining"
	// ReleaseWithdrawn: nodes no longer announce the VIP, but forward packets that still arrive.
	ReleaseWithdrawn ReleasePhase = "Withdrawn"
)

// ClaimedPort is a port of a VIP.
type ClaimedPort struct {
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// +optional
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP
	// +kubebuilder:default=TCP
	Protocol corev1.Protocol `json:"protocol,omitempty"`
}

// VIPPhase is the phase of a VIP.
//
// +kubebuilder:validation:Enum=Reserved;Bound;Releasing
type VIPPhase string

// Phases of a VIP.
const (
	// VIPReserved: no Service has the address.
	VIPReserved VIPPhase = "Reserved"
	// VIPBound: at least one Service has the address.
	VIPBound VIPPhase = "Bound"
	// VIPReleasing: all Services that have the address are releasing it.
	VIPReleasing VIPPhase = "Releasing"
)

// VIPStatus is written by the operator. It is empty while one Service has the VIP and there is no fault.
type VIPStatus struct {
	// +optional
	Phase VIPPhase `json:"phase,omitempty"`

	// Services are the Services of the VIP as "namespace/name", for display. Long lists are shortened; see
	// spec.claims.
	//
	// +optional
	Services string `json:"services,omitempty"`

	// L2Node is the node that answers for the VIP on its links (VIPAdvertisement spec.l2), as last
	// reported by its agent. It is empty if no node does, or if the VIP is not among the 256 VIPs that a
	// node reports.
	//
	// +optional
	L2Node string `json:"l2Node,omitempty"`

	// Conditions: Ready, true if the VIP is usable: its name matches its address, and no two claims list
	// the same port. The reason is Valid, Invalid or PortConflict. Unique is present only while it is
	// False: a host has the address, with reason DuplicateAddress or DuplicateInUse. Announced is present
	// on a VIP of a Service unless the status is empty: False if no node can announce the address, with
	// reason NotSelected, NotAnnounced, NoLink or Occupied.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VIPList is a list of VIPs.
//
// +kubebuilder:object:root=true
type VIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VIP `json:"items"`
}

// VIPName returns the name of the VIP object of an address. For IPv4 it is the address in text form. For
// IPv6 it is the eight groups without leading zeros, joined by "-" (2001:db8::1 is 2001-db8-0-0-0-0-0-1).
// An IPv4-mapped address has the name of its IPv4 address.
func VIPName(address netip.Addr) string {
	address = address.Unmap()
	if address.Is4() {
		return address.String()
	}
	bytes := address.As16()
	groups := make([]string, 0, 8)
	for i := 0; i < len(bytes); i += 2 {
		group := uint64(bytes[i])<<8 | uint64(bytes[i+1])
		groups = append(groups, strconv.FormatUint(group, 16))
	}
	return strings.Join(groups, "-")
}
