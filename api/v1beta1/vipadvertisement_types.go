// SPDX-License-Identifier: Apache-2.0

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VIPAdvertisement selects the VIPs to announce, the nodes and peers, and the route attributes. A VIP that
// no advertisement selects is not announced.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=millrace,shortName=vadv
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Pools",type=string,JSONPath=`.spec.pools`
// +kubebuilder:printcolumn:name="Peers",type=string,JSONPath=`.spec.peers`
// +kubebuilder:printcolumn:name="L2",type=string,JSONPath=`.spec.l2`,priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VIPAdvertisement struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   VIPAdvertisementSpec   `json:"spec"`
	Status VIPAdvertisementStatus `json:"status,omitempty"`
}

// VIPAdvertisementSpec selects VIPs, nodes and peers. If several advertisements select the same VIP, it is
// announced to the union of their peers. If their attributes for a VIP and peer differ, the first by name
// wins.
//
// +kubebuilder:validation:XValidation:rule="!has(self.l2) || (!has(self.peers) || self.peers.size() == 0) && !has(self.aggregationLength) && !has(self.aggregationLengthV6) && (!has(self.communities) || self.communities.size() == 0) && !has(self.med) && (!has(self.asPathPrepend) || self.asPathPrepend == 0) && !has(self.localPreference) && !has(self.linkBandwidth)",message="l2 is mutually exclusive with settings for peers: create another VIPAdvertisement for peers, which may select the same VIPs"
// +kubebuilder:validation:XValidation:rule="!has(self.linkBandwidth) || (!has(self.aggregationLength) || self.aggregationLength == 32) && (!has(self.aggregationLengthV6) || self.aggregationLengthV6 == 128)",message="linkBandwidth is mutually exclusive with aggregation, because it counts the endpoints of one VIP"
type VIPAdvertisementSpec struct {
	// Pools specifies the VIPPools whose VIPs are announced. Defaults to all.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +listType=set
	Pools []string `json:"pools,omitempty"`

	// ServiceSelector limits it to VIPs of Services with these labels.
	//
	// +optional
	ServiceSelector *metav1.LabelSelector `json:"serviceSelector,omitempty"`

	// NodeSelector limits it to nodes with these labels.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// Peers specifies the LBPeers to announce to. Defaults to all.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +listType=set
	Peers []string `json:"peers,omitempty"`

	// AggregationLength specifies the prefix length of the routes of IPv4 VIPs. A node announces an
	// aggregate while it would announce at least one VIP in it. The node drops packets to other addresses
	// of the aggregate. Defaults to 32, one route per VIP.
	//
	// +optional
	// +kubebuilder:validation:Minimum=8
	// +kubebuilder:validation:Maximum=32
	AggregationLength *int32 `json:"aggregationLength,omitempty"`

	// AggregationLengthV6 specifies the prefix length of the routes of IPv6 VIPs. Defaults to 128, one
	// route per VIP.
	//
	// +optional
	// +kubebuilder:validation:Minimum=32
	// +kubebuilder:validation:Maximum=128
	AggregationLengthV6 *int32 `json:"aggregationLengthV6,omitempty"`

	// Communities specifies the communities of the routes: plain (RFC 1997, "64512:100"), large (RFC 8092,
	// "64512:1:100"), extended (RFC 4360, "rt:64512:100" for a route target, "soo:64512:100" for a site of
	// origin) and well-known ones by name.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:XValidation:rule="self.split(':').all(n, !n.matches('^[0-9]{1,10}$') || int(n) <= (self.split(':').size() == 2 ? 65535 : 4294967295))",message="the numbers of a community are from 0 to 65535 (64512:100), those of a large community from 0 to 4294967295 (64512:1:100)"
	// +kubebuilder:validation:items:Pattern=`^([0-9]{1,10}:[0-9]{1,10}(:[0-9]{1,10})?|(rt|soo):[0-9]{1,10}:[0-9]{1,10}|graceful-shutdown|accept-own|blackhole|no-export|no-advertise|no-export-subconfed|no-peer)$`
	// +listType=set
	Communities []string `json:"communities,omitempty"`

	// MED specifies the multi-exit discriminator of the routes: of the routes of one autonomous system,
	// routers prefer the lowest (RFC 4271, section 5.1.4). Absent: not sent.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	MED *int64 `json:"med,omitempty"`

	// ASPathPrepend specifies the number of additional copies of localASN in the AS path, so that routers
	// prefer other routes. It applies to external sessions only.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=16
	ASPathPrepend int32 `json:"asPathPrepend,omitempty"`

	// LocalPreference specifies the local preference of the routes in internal sessions (RFC 4271, section
	// 5.1.5).
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4294967295
	LocalPreference *int64 `json:"localPreference,omitempty"`

	// LinkBandwidth enables the link bandwidth community of the routes (draft-ietf-idr-link-bandwidth).
	// Routers with weighted multipath (UCMP) distribute traffic over the nodes in proportion to it. Absent:
	// not sent.
	//
	// +optional
	LinkBandwidth LinkBandwidth `json:"linkBandwidth,omitempty"`

	// L2 makes one of the nodes answer for each VIP on its links, by ARP (RFC 826) and Neighbor Discovery
	// (RFC 4861), instead of announcing the VIPs to peers. No router is needed. An advertisement with l2
	// has no peers and no route attributes. Another advertisement may announce the same VIPs to peers.
	//
	// +optional
	L2 *L2Advertisement `json:"l2,omitempty"`
}

// L2Advertisement specifies the links where nodes answer for VIPs.
type L2Advertisement struct {
	// Interfaces specifies the names of the uplinks where a node answers, regardless of their networks.
	// Defaults to the uplinks with a network that contains the VIP.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=15
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[^/ :]+$')",message="must be the name of an interface, such as eth0 or bond0.100"
	// +listType=set
	Interfaces []string `json:"interfaces,omitempty"`
}

// LinkBandwidth specifies the value of the link bandwidth community.
//
// +kubebuilder:validation:Enum=Endpoints
type LinkBandwidth string

// LinkBandwidthEndpoints is the number of the node's usable endpoints of the VIP's Services with
// externalTrafficPolicy Local, or the sum of their weights in a VIPRoute. Routes of VIPs without such a
// Service do not have the community, because each node forwards to all endpoints.
const LinkBandwidthEndpoints LinkBandwidth = "Endpoints"

// VIPAdvertisementStatus is written by the operator.
type VIPAdvertisementStatus struct {
	// Conditions: Ready, with reason Valid or Invalid. Conflicted, true with reason AttributeConflict if the
	// attributes of another advertisement, earlier by name, apply instead.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// VIPAdvertisementList is a list of VIPAdvertisements.
//
// +kubebuilder:object:root=true
type VIPAdvertisementList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VIPAdvertisement `json:"items"`
}
