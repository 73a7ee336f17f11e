// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VIP is one address that is allocated or reserved. Its name is VIPName of its
// address, so that the API server itself keeps an address from having two. It
// refuses a new VIP with any other name; one that an earlier release let in stays,
// and is not used.
//
// +kubebuilder:validation:XValidation:rule="oldSelf.hasValue() || !isIP(self.spec.address) || (ip(self.spec.address).family() == 4 ? self.metadata.name == self.spec.address : self.metadata.name.matches('^(0|[1-9a-f][0-9a-f]{0,3})(-(0|[1-9a-f][0-9a-f]{0,3})){7}$') && ip(self.metadata.name.replace('-', ':')) == ip(self.spec.address))",optionalOldSelf=true,message="the name of a VIP is its address: 203.0.113.80 as it is, 2001:db8::1 as 2001-db8-0-0-0-0-0-1"
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=millrace
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.address`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.claims[0].namespace`
// +kubebuilder:printcolumn:name="Service",type=string,JSONPath=`.spec.claims[0].name`
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Answered By",type=string,JSONPath=`.status.answeredBy`
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

// VIPSpec says which address a VIP is and whose.
type VIPSpec struct {
	// Address is the IPv4 or IPv6 address in canonical form (RFC 5952).
	//
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip.isCanonical(self)",message="must be an IP address in canonical form"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast()",message="must be unicast: neither multicast, loopback, link-local nor unspecified"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the address of a VIP cannot change"
	Address string `json:"address"`

	// Pool is the name of the VIPPool that the address was taken from.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool,omitempty"`

	// Claims are the Services that the address serves, in the order in which
	// they got it. One without a uid reserves the address for a Service of that
	// name; without any, the address is reserved for whoever asks for it.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	Claims []VIPClaim `json:"claims,omitempty"`

	// ReclaimPolicy says what becomes of the VIP when its last Service is gone:
	// Delete frees the address, unless the VIPPool says Retain then; Retain keeps it
	// for a Service of the same name.
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
	// UID tells a Service from a later one with the same name. It is empty in a
	// manual claim, and in one that a Service has left in a VIP that is retained.
	// The operator fills it in when a Service of the name comes.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid,omitempty"`
	// SharingKey is that of the Service (annotation millrace.io/sharing-key):
	// a Service with the same one can be given the VIP, too.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SharingKey string `json:"sharingKey,omitempty"`
	// Ports are those of the VIP that are this Service's and no other's, where
	// the VIP is shared or can be. Of a port that no claim lists, the first
	// claim has it whose Service does.
	//
	// +optional
	// +listType=map
	// +listMapKey=port
	// +listMapKey=protocol
	Ports []ClaimedPort `json:"ports,omitempty"`
	// Release is set by the operator while the Service gives the VIP up: it is deleted, or has
	// another address instead.
	//
	// +optional
	Release *ClaimRelease `json:"release,omitempty"`
}

// ClaimRelease is how far a Service has given a VIP up. A VIP is as far as the last of its
// Services.
type ClaimRelease struct {
	Phase ReleasePhase `json:"phase"`
	// Since is when the phase began.
	Since metav1.MicroTime `json:"since"`
}

// ReleasePhase is a step of giving a VIP up. After the last one the claim is removed.
//
// +kubebuilder:validation:Enum=Draining;Withdrawn
type ReleasePhase string

// Phases of a release, in their order.
const (
	// ReleaseDraining: nodes announce the VIP with the community GRACEFUL_SHUTDOWN (RFC 8326).
	// Connections go on, and new ones are served.
	ReleaseDraining ReleasePhase = "Draining"
	// ReleaseWithdrawn: nodes announce the VIP no more, and forward what still comes.
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

// VIPPhase is where a VIP is in its life.
//
// +kubebuilder:validation:Enum=Reserved;Bound;Releasing
type VIPPhase string

// Phases of a VIP.
const (
	// VIPReserved: no Service has the address.
	VIPReserved VIPPhase = "Reserved"
	// VIPBound: at least one Service has the address.
	VIPBound VIPPhase = "Bound"
	// VIPReleasing: all Services that have the address are giving it up.
	VIPReleasing VIPPhase = "Releasing"
)

// VIPStatus is what the operator observed of a VIP. It is empty while the spec says it all: one
// Service has the VIP, and nothing is wrong.
type VIPStatus struct {
	// +optional
	Phase VIPPhase `json:"phase,omitempty"`

	// Services names those that claim the VIP, as "namespace/name", the first
	// few of many: for a reader, spec.claims has them all.
	//
	// +optional
	Services string `json:"services,omitempty"`

	// AnsweredBy is the node that answers for the VIP on its links (VIPAdvertisement spec.l2), as its
	// agent said last. It is empty where no node does, and where that is one of more than 256 VIPs
	// of a node.
	//
	// +optional
	AnsweredBy string `json:"answeredBy,omitempty"`

	// Conditions: Ready, true when the VIP can be used as it is written: its name
	// is that of its address, and no two claims list the same port. The reason is
	// Valid, Invalid or PortConflict. Unique is there only while it is False: a host has the
	// address, with reason DuplicateAddress or DuplicateInUse.
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

// VIPName returns the name of the VIP object of an address. That of an IPv4
// address is the address as it is written. That of an IPv6 address is its eight
// groups without leading zeros, joined by "-" (2001:db8::1 is
// 2001-db8-0-0-0-0-0-1). An IPv4-mapped address has the name of its IPv4 address.
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
