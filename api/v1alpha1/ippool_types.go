// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IPPool is a set of addresses from which Services get their VIPs.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=millrace
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="Assigned",type=integer,JSONPath=`.status.assigned`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Priority",type=integer,JSONPath=`.spec.priority`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   IPPoolSpec   `json:"spec"`
	Status IPPoolStatus `json:"status,omitempty"`
}

// IPPoolSpec says which addresses a pool has and who may have them.
type IPPoolSpec struct {
	// Addresses are CIDRs ("203.0.113.0/24", "2001:db8:1::/64") and inclusive
	// ranges ("203.0.113.10-203.0.113.20"). Every address of a CIDR is used,
	// the first and the last one too, unless it is in reserved.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=96
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.contains('-') ? a.split('-').size() == 2 && a.split('-').all(p, isIP(p.trim())) : isCIDR(a.trim()))",message="each entry must be a CIDR (203.0.113.0/24) or a range (203.0.113.10-203.0.113.20)"
	// +listType=atomic
	Addresses []string `json:"addresses"`

	// Reserved are addresses, CIDRs or ranges of the pool that are never
	// given out.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=96
	// +kubebuilder:validation:XValidation:rule="self.all(a, a.contains('-') ? a.split('-').size() == 2 && a.split('-').all(p, isIP(p.trim())) : isCIDR(a.trim()) || isIP(a.trim()))",message="each entry must be an address, a CIDR or a range"
	// +listType=atomic
	Reserved []string `json:"reserved,omitempty"`

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

	// SharingScope says whose Services can share an address of the pool:
	// Namespace, those of one namespace with the same sharing key; Cluster,
	// those of any namespace that the pool selects, so that whoever knows the
	// key can take ports of the address that are free.
	//
	// +optional
	// +kubebuilder:default=Namespace
	SharingScope SharingScope `json:"sharingScope,omitempty"`

	// ReclaimPolicy says what becomes of a VIP whose last Service is gone:
	// Delete frees the address, Retain keeps the VIP object, reserved for a
	// Service that asks for its address.
	//
	// +optional
	// +kubebuilder:default=Delete
	ReclaimPolicy ReclaimPolicy `json:"reclaimPolicy,omitempty"`
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

// IPPoolStatus is what the operator observed of a pool.
type IPPoolStatus struct {
	// Assigned is the number of addresses that have a VIP object.
	//
	// +optional
	Assigned int64 `json:"assigned"`

	// Free is the number of addresses that can still be given out, at most
	// 2^53-1.
	//
	// +optional
	Free int64 `json:"free"`

	// Conditions: Ready, with reason Valid, Invalid or Overlap.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// IPPoolList is a list of IPPools.
//
// +kubebuilder:object:root=true
type IPPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPPool `json:"items"`
}
