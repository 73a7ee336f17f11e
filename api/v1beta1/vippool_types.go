// SPDX-License-Identifier: Apache-2.0

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VIPPool represents a set of addresses for the VIPs of Services.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=millrace,shortName=vpool
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="Assigned",type=integer,JSONPath=`.status.assigned`
// +kubebuilder:printcolumn:name="Free",type=string,JSONPath=`.status.freeDisplay`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VIPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   VIPPoolSpec   `json:"spec"`
	Status VIPPoolStatus `json:"status,omitempty"`
}

// VIPPoolSpec specifies the addresses of a pool and the Services that may use them.
type VIPPoolSpec struct {
	// Addresses specifies CIDRs ("203.0.113.0/24", "2001:db8:1::/64") and inclusive ranges
	// ("203.0.113.10-203.0.113.20"). All addresses of a CIDR are used, including the first and the last
	// one, unless excluded by reserved or avoid.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=96
	// +kubebuilder:validation:items:XValidation:rule="!self.contains('-') || self.contains(':') || ![0, 1].all(i, isIP(self.split('-')[i].trim())) || [0, 1].map(i, self.split('-')[i].trim().split('.')).map(o, int(o[0]) * 16777216 + int(o[1]) * 65536 + int(o[2]) * 256 + int(o[3])).isSorted()",message="a range must not be inverted: 203.0.113.10-203.0.113.20, not 203.0.113.20-203.0.113.10"
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.contains('-') ? a.split('-').size() == 2 && a.split('-').all(p, isIP(p.trim())) : isCIDR(a.trim()))",message="each entry must be a CIDR (203.0.113.0/24) or a range (203.0.113.10-203.0.113.20)"
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.contains('-') || !isCIDR(a.trim()) || cidr(a.trim()) == cidr(a.trim()).masked())",message="a CIDR must not have host bits set: 203.0.113.0/24, not 203.0.113.1/24"
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.contains('-') ? a.split('-').map(p, p.trim()).all(p, !isIP(p) || ip(p).isGlobalUnicast()) : !isCIDR(a.trim()) || cidr(a.trim()).ip().isGlobalUnicast())",message="addresses must be unicast: neither multicast, loopback, link-local nor unspecified"
	// +kubebuilder:validation:XValidation:rule="self.all(a, !a.contains('-') || a.split('-').all(p, p.contains(':')) || a.split('-').all(p, !p.contains(':')))",message="a range must not mix families"
	// +listType=atomic
	Addresses []string `json:"addresses"`

	// Reserved specifies addresses, CIDRs or ranges of the pool that are never assigned.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=96
	// +kubebuilder:validation:items:XValidation:rule="!self.contains('-') || self.contains(':') || ![0, 1].all(i, isIP(self.split('-')[i].trim())) || [0, 1].map(i, self.split('-')[i].trim().split('.')).map(o, int(o[0]) * 16777216 + int(o[1]) * 65536 + int(o[2]) * 256 + int(o[3])).isSorted()",message="a range must not be inverted: 203.0.113.10-203.0.113.20, not 203.0.113.20-203.0.113.10"
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.contains('-') ? a.split('-').size() == 2 && a.split('-').all(p, isIP(p.trim())) : isCIDR(a.trim()) || isIP(a.trim()))",message="each entry must be an address, a CIDR or a range"
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.contains('-') || !isCIDR(a.trim()) || cidr(a.trim()) == cidr(a.trim()).masked())",message="a CIDR must not have host bits set: 203.0.113.0/24, not 203.0.113.1/24"
	// +kubebuilder:validation:XValidation:rule="self.all(a, !a.contains('-') || a.split('-').all(p, p.contains(':')) || a.split('-').all(p, !p.contains(':')))",message="a range must not mix families"
	// +listType=atomic
	Reserved []string `json:"reserved,omitempty"`

	// Avoid excludes special addresses of each CIDR in addresses, because some routers and clients do not
	// treat them as host addresses. Network is the first address of an IPv4 CIDR, Broadcast its last one.
	// SubnetRouterAnycast is the first address of an IPv6 CIDR (RFC 4291, section 2.6.1). CIDRs of one or
	// two addresses (RFC 3021, RFC 6164) and ranges have no special addresses. Existing VIPs keep their
	// addresses. Defaults to no exclusion.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	Avoid []AvoidedAddress `json:"avoid,omitempty"`

	// NamespaceSelector limits the pool to Services in namespaces with these labels. Defaults to all
	// namespaces.
	//
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// ServiceSelector limits the pool to Services with these labels. Defaults to all Services.
	//
	// +optional
	ServiceSelector *metav1.LabelSelector `json:"serviceSelector,omitempty"`

	// Priority specifies the order of pools that match the same Service: the highest is tried first. Of equal
	// ones, those with a namespaceSelector precede the others, then by name.
	//
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority,omitempty"`

	// AutoAssign set to false restricts the pool to Services that request the pool, one of its addresses,
	// or a sharing key used in it by annotation.
	//
	// +optional
	// +kubebuilder:default=true
	AutoAssign *bool `json:"autoAssign,omitempty"`

	// SharingScope specifies which Services with the same sharing key can share an address of the pool.
	// Namespace: Services in the same namespace. Cluster: Services in any namespace that the pool selects;
	// any of them with the key can take free ports of the address.
	//
	// +optional
	// +kubebuilder:default=Namespace
	SharingScope SharingScope `json:"sharingScope,omitempty"`

	// PerNamespace limits the number of addresses per namespace. Defaults to unlimited.
	//
	// +optional
	PerNamespace *NamespaceQuota `json:"perNamespace,omitempty"`

	// ReclaimPolicy specifies what happens to a VIP when its last Service is deleted: Delete releases the
	// address, Retain keeps the VIP object, reserved for a Service that requests its address. The policy at
	// the time of the deletion applies. A VIP whose own policy is Retain is kept in either case.
	//
	// +optional
	// +kubebuilder:default=Delete
	ReclaimPolicy ReclaimPolicy `json:"reclaimPolicy,omitempty"`
}

// AvoidedAddress is a special address of a CIDR.
//
// +kubebuilder:validation:Enum=Network;Broadcast;SubnetRouterAnycast
type AvoidedAddress string

// Special addresses of a CIDR.
const (
	AvoidNetwork             AvoidedAddress = "Network"
	AvoidBroadcast           AvoidedAddress = "Broadcast"
	AvoidSubnetRouterAnycast AvoidedAddress = "SubnetRouterAnycast"
)

// NamespaceQuota limits the addresses of a pool per namespace. A VIP counts once in each namespace with a
// claim on it, either of a Service or a reservation. Addresses above the limit are kept.
type NamespaceQuota struct {
	// Max specifies the limit of namespaces that no override selects.
	//
	// +kubebuilder:validation:Minimum=0
	Max int32 `json:"max"`

	// Overrides specifies other limits for some namespaces. The first one that selects a namespace applies.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	Overrides []NamespaceQuotaOverride `json:"overrides,omitempty"`
}

// NamespaceQuotaOverride is the limit of some namespaces.
type NamespaceQuotaOverride struct {
	// NamespaceSelector selects namespaces by their labels. Each namespace has its name as the label
	// kubernetes.io/metadata.name.
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`

	// Max is the limit of each of these namespaces.
	//
	// +kubebuilder:validation:Minimum=0
	Max int32 `json:"max"`
}

// SharingScope specifies the Services that can share an address.
//
// +kubebuilder:validation:Enum=Namespace;Cluster
type SharingScope string

// Sharing scopes.
const (
	ShareInNamespace SharingScope = "Namespace"
	ShareInCluster   SharingScope = "Cluster"
)

// ReclaimPolicy specifies what happens to a VIP when its last Service is deleted.
//
// +kubebuilder:validation:Enum=Delete;Retain
type ReclaimPolicy string

// Reclaim policies.
const (
	ReclaimDelete ReclaimPolicy = "Delete"
	ReclaimRetain ReclaimPolicy = "Retain"
)

// VIPPoolStatus is written by the operator.
type VIPPoolStatus struct {
	// Assigned is the number of addresses that have a VIP object. It is absent until the operator has
	// counted them.
	//
	// +optional
	Assigned *int64 `json:"assigned,omitempty"`

	// Free is the number of addresses that can still be assigned, at most 2^53-1.
	//
	// +optional
	Free *int64 `json:"free,omitempty"`

	// FreeDisplay is free as text: from 2^31 on, the nearest power of two, such as 2^53.
	//
	// +optional
	FreeDisplay string `json:"freeDisplay,omitempty"`

	// Usable are the addresses, CIDRs and ranges that are assigned: spec.addresses without reserved and
	// avoided ones, and without those of an older pool, of nodes, of routers, and of the pod and Service
	// networks. Nodes drop packets to usable addresses without a VIP. If there are more than 512 entries,
	// the smallest are omitted here, but assigned nevertheless.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=512
	// +listType=atomic
	Usable []string `json:"usable,omitempty"`

	// Conditions: Ready, with reason Valid, Invalid, PoolOverlap, Occupied or OverlapsEndpoints. With the last
	// three it is true as long as any address can be used. OverlapsEndpoints is True while endpoints have
	// addresses that the pool would add.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VIPPoolList is a list of VIPPools.
//
// +kubebuilder:object:root=true
type VIPPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VIPPool `json:"items"`
}
