// SPDX-License-Identifier: Apache-2.0

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VIPPool is a set of addresses from which Services get their VIPs.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=millrace,shortName=vpool
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="Assigned",type=integer,JSONPath=`.status.assigned`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.free`
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

// VIPPoolSpec says which addresses a pool has and who may have them.
type VIPPoolSpec struct {
	// Addresses are CIDRs ("203.0.113.0/24", "2001:db8:1::/64") and inclusive
	// ranges ("203.0.113.10-203.0.113.20"). Every address of a CIDR is used,
	// the first and the last one too, unless it is in reserved or avoid says so.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=96
	// +kubebuilder:validation:items:XValidation:rule="!self.contains('-') || self.contains(':') || ![0, 1].all(i, isIP(self.split('-')[i].trim())) || [0, 1].map(i, self.split('-')[i].trim().split('.')).map(o, int(o[0]) * 16777216 + int(o[1]) * 65536 + int(o[2]) * 256 + int(o[3])).isSorted()",message="a range must not be inverted: 203.0.113.10-203.0.113.20, not 203.0.113.20-203.0.113.10"
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.contains('-') ? a.split('-').size() == 2 && a.split('-').all(p, isIP(p.trim())) : isCIDR(a.trim()))",message="each entry must be a CIDR (203.0.113.0/24) or a range (203.0.113.10-203.0.113.20)"
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.contains('-') || !isCIDR(a.trim()) || cidr(a.trim()) == cidr(a.trim()).masked())",message="a CIDR must not have bits set behind its prefix length: 203.0.113.0/24, not 203.0.113.1/24"
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.contains('-') ? a.split('-').all(p, ip(p.trim()).isGlobalUnicast()) : !isCIDR(a.trim()) || cidr(a.trim()).ip().isGlobalUnicast())",message="addresses must be unicast: neither multicast, loopback, link-local nor unspecified"
	// +kubebuilder:validation:XValidation:rule="self.all(a, !a.contains('-') || a.split('-').all(p, p.contains(':')) || a.split('-').all(p, !p.contains(':')))",message="a range must not mix families"
	// +listType=atomic
	Addresses []string `json:"addresses"`

	// Reserved are addresses, CIDRs or ranges of the pool that are never
	// given out.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=96
	// +kubebuilder:validation:items:XValidation:rule="!self.contains('-') || self.contains(':') || ![0, 1].all(i, isIP(self.split('-')[i].trim())) || [0, 1].map(i, self.split('-')[i].trim().split('.')).map(o, int(o[0]) * 16777216 + int(o[1]) * 65536 + int(o[2]) * 256 + int(o[3])).isSorted()",message="a range must not be inverted: 203.0.113.10-203.0.113.20, not 203.0.113.20-203.0.113.10"
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.contains('-') ? a.split('-').size() == 2 && a.split('-').all(p, isIP(p.trim())) : isCIDR(a.trim()) || isIP(a.trim()))",message="each entry must be an address, a CIDR or a range"
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.contains('-') || !isCIDR(a.trim()) || cidr(a.trim()) == cidr(a.trim()).masked())",message="a CIDR must not have bits set behind its prefix length: 203.0.113.0/24, not 203.0.113.1/24"
	// +kubebuilder:validation:XValidation:rule="self.all(a, !a.contains('-') || a.split('-').all(p, p.contains(':')) || a.split('-').all(p, !p.contains(':')))",message="a range must not mix families"
	// +listType=atomic
	Reserved []string `json:"reserved,omitempty"`

	// Avoid are special addresses of each CIDR in addresses that are not given
	// out, because some routers and clients do not treat them as a host's.
	// Network is the first address of an IPv4 CIDR, Broadcast its last one.
	// SubnetRouterAnycast is the first address of an IPv6 CIDR (RFC 4291,
	// section 2.6.1). A CIDR of one or two addresses has none of them (RFC 3021,
	// RFC 6164), and a range neither. A VIP that has such an address keeps it.
	// Absent means that all are given out.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	Avoid []AvoidedAddress `json:"avoid,omitempty"`

	// NamespaceSelector limits the pool to Services in namespaces with these
	// labels. An absent selector means all namespaces.
	//
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// ServiceSelector limits the pool to Services with these labels. An
	// absent selector means all Services.
	//
	// +optional
	ServiceSelector *metav1.LabelSelector `json:"serviceSelector,omitempty"`

	// Priority orders pools that match the same Service: the highest is
	// tried first, then by name.
	//
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority,omitempty"`

	// AutoAssign set to false keeps the pool for Services that name it, an
	// address of it, or the sharing key of one, by annotation.
	//
	// +optional
	// +kubebuilder:default=true
	AutoAssign *bool `json:"autoAssign,omitempty"`

	// SharingScope says which Services with the same sharing key can share an
	// address of the pool. Namespace: those of one namespace. Cluster: those of
	// any namespace that the pool selects. Any Service with the key can then take
	// ports of the address that are free.
	//
	// +optional
	// +kubebuilder:default=Namespace
	SharingScope SharingScope `json:"sharingScope,omitempty"`

	// PerNamespace limits how many addresses of the pool each namespace has. Absent
	// means that there is no limit.
	//
	// +optional
	PerNamespace *NamespaceQuota `json:"perNamespace,omitempty"`

	// ReclaimPolicy says what becomes of a VIP whose last Service is gone:
	// Delete frees the address, Retain keeps the VIP object, reserved for a
	// Service that asks for its address. What counts is the policy at that time. A VIP that says
	// Retain itself stays all the same.
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

// NamespaceQuota says how many addresses of a pool the Services of a namespace
// can have. A VIP counts once in each namespace that has a claim on it, be it of
// a Service or a reservation. Who has more already keeps them.
type NamespaceQuota struct {
	// Max is the number for namespaces that no override selects.
	//
	// +kubebuilder:validation:Minimum=0
	Max int32 `json:"max"`

	// Overrides have other numbers for some namespaces. The first one that selects
	// a namespace counts.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	Overrides []NamespaceQuotaOverride `json:"overrides,omitempty"`
}

// NamespaceQuotaOverride is the number of addresses for some namespaces.
type NamespaceQuotaOverride struct {
	// NamespaceSelector selects namespaces by their labels. Each namespace has its
	// name as the label kubernetes.io/metadata.name.
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`

	// Max is the number for each of them.
	//
	// +kubebuilder:validation:Minimum=0
	Max int32 `json:"max"`
}

// SharingScope says whose Services can share an address.
//
// +kubebuilder:validation:Enum=Namespace;Cluster
type SharingScope string

// Sharing scopes.
const (
	ShareInNamespace SharingScope = "Namespace"
	ShareInCluster   SharingScope = "Cluster"
)

// ReclaimPolicy says what becomes of a VIP whose last Service is gone.
//
// +kubebuilder:validation:Enum=Delete;Retain
type ReclaimPolicy string

// Reclaim policies.
const (
	ReclaimDelete ReclaimPolicy = "Delete"
	ReclaimRetain ReclaimPolicy = "Retain"
)

// VIPPoolStatus is what the operator observed of a pool.
type VIPPoolStatus struct {
	// Assigned is the number of addresses that have a VIP object. It is absent
	// until the operator has counted.
	//
	// +optional
	Assigned *int64 `json:"assigned,omitempty"`

	// Free is the number of addresses that can still be given out, at most
	// 2^53-1.
	//
	// +optional
	Free *int64 `json:"free,omitempty"`

	// Usable are the addresses, CIDRs and ranges that VIPs are given from. They
	// are spec.addresses without the reserved and avoided ones, and without those of an older
	// pool, of nodes, of routers, and of the pod and Service networks. Nodes drop
	// packets to them that are for no VIP. Of more than 512 the smallest are left out here;
	// VIPs are given from them all the same.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=512
	// +listType=atomic
	Usable []string `json:"usable,omitempty"`

	// Conditions: Ready, with reason Valid, Invalid, Overlap, Occupied or OverlapsEndpoints. With
	// the last three it is true as long as any address can be used. OverlapsEndpoints is True while
	// endpoints have addresses that the pool would add.
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
