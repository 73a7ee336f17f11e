// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LBPeer is a router that nodes have a BGP session with: one session from
// every node that it selects.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=millrace,shortName=lbp
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Peer",type=string,JSONPath=`.spec.peerAddress`
// +kubebuilder:printcolumn:name="Peer ASN",type=integer,JSONPath=`.spec.peerASN`
// +kubebuilder:printcolumn:name="Local ASN",type=integer,JSONPath=`.spec.localASN`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type LBPeer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   LBPeerSpec   `json:"spec"`
	Status LBPeerStatus `json:"status,omitempty"`
}

// AddressFamily is an address family of BGP (RFC 4760), unicast.
//
// +kubebuilder:validation:Enum=IPv4;IPv6
type AddressFamily string

// Address families.
const (
	FamilyIPv4 AddressFamily = "IPv4"
	FamilyIPv6 AddressFamily = "IPv6"
)

// LBPeerSpec says how sessions with a peer are held.
//
// +kubebuilder:validation:XValidation:rule="!has(self.keepaliveTime) || !has(self.holdTime) || duration(self.keepaliveTime) + duration(self.keepaliveTime) + duration(self.keepaliveTime) <= duration(self.holdTime)",message="holdTime must be at least three times keepaliveTime"
type LBPeerSpec struct {
	// PeerAddress is the address of the router.
	//
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an IP address"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast() || ip(self).isLoopback() || (ip(self).family() == 4 && ip(self).isLinkLocalUnicast())",message="must be the address of a router: neither multicast, unspecified nor IPv6 link-local"
	PeerAddress string `json:"peerAddress"`

	// PeerASN is the router's autonomous system number.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	PeerASN int64 `json:"peerASN"`

	// LocalASN is the nodes' autonomous system number.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	LocalASN int64 `json:"localASN"`

	// PeerPort is the TCP port of the router.
	//
	// +optional
	// +kubebuilder:default=179
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	PeerPort int32 `json:"peerPort,omitempty"`

	// NodeSelector limits the peer to nodes with these labels. An absent
	// selector means all nodes.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// Families that are announced in the session. Default: the family of
	// peerAddress. A family other than that of peerAddress is announced with
	// the node's own address of that family as the next hop.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	Families []AddressFamily `json:"families,omitempty"`

	// HoldTime after which a silent session is taken for dead (RFC 4271,
	// section 4.2): whole seconds, at least 3s.
	//
	// +optional
	// +kubebuilder:default="90s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3s') && duration(self) <= duration('65535s')",message="must be between 3s and 65535s"
	HoldTime *metav1.Duration `json:"holdTime,omitempty"`

	// KeepaliveTime between two keepalive messages; default a third of
	// holdTime.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	KeepaliveTime *metav1.Duration `json:"keepaliveTime,omitempty"`

	// ConnectRetryTime between two attempts to connect (RFC 4271, section 8.2).
	//
	// +optional
	// +kubebuilder:default="5s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('600s')",message="must be between 1s and 600s"
	ConnectRetryTime *metav1.Duration `json:"connectRetryTime,omitempty"`

	// EBGPMultiHop is the TTL of the session's packets to a router that is
	// not directly connected. Absent or 1: directly connected.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	EBGPMultiHop *int32 `json:"ebgpMultiHop,omitempty"`

	// GracefulRestart (RFC 4724) keeps the node's routes while its agent
	// restarts; the programs in the kernel go on forwarding meanwhile.
	//
	// +optional
	// +kubebuilder:default={}
	GracefulRestart *GracefulRestart `json:"gracefulRestart,omitempty"`

	// BFD finds a cut link or a dead router faster than holdTime. Absent: no BFD session.
	//
	// +optional
	BFD *BFD `json:"bfd,omitempty"`
}

// GracefulRestart is the graceful restart of a session (RFC 4724).
type GracefulRestart struct {
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// RestartTime is how long the router keeps the routes of a node whose
	// agent is away: whole seconds, at most 4095s (RFC 4724, section 3).
	//
	// +optional
	// +kubebuilder:default="120s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('4095s')",message="must be between 1s and 4095s"
	RestartTime *metav1.Duration `json:"restartTime,omitempty"`
}

// LBPeerStatus is what the operator observed of a peer. The state of its
// sessions is in each LBNode.
type LBPeerStatus struct {
	// Conditions: Ready, with reason Valid or Invalid.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// LBPeerList is a list of LBPeers.
//
// +kubebuilder:object:root=true
type LBPeerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LBPeer `json:"items"`
}
