// SPDX-License-Identifier: Apache-2.0

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LBNodeReport represents the observed state of a node. It has the name of the Node and is deleted with its
// LBNode. The operator creates it, and the node's agent writes its status. The operator writes only the
// conditions NodeReady and TunnelKeyCurrent, and sets Ready to Unknown while the Node is not ready. Other
// agents do not watch it. Its size is independent of the number of VIPs; the state of each VIP is available
// from the node's agent.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=millrace,shortName=lbr
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="BGP",type=string,JSONPath=`.status.conditions[?(@.type=="BGPEstablished")].status`
// +kubebuilder:printcolumn:name="Announced",type=integer,JSONPath=`.status.vips.announced`
// +kubebuilder:printcolumn:name="Programmed",type=integer,JSONPath=`.status.vips.programmed`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.status.xdpModes`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type LBNodeReport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status LBNodeReportStatus `json:"status,omitempty"`
}

// LBNodeReportStatus is the state observed by the node's agent.
type LBNodeReportStatus struct {
	// Version of the agent.
	//
	// +optional
	Version string `json:"version,omitempty"`

	// Interfaces are the node's uplinks: at most 32, those without the programs first.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Interfaces []InterfaceStatus `json:"interfaces,omitempty"`

	// XDPModes are the distinct modes of the node's uplinks, separated by commas.
	//
	// +optional
	XDPModes string `json:"xdpModes,omitempty"`

	// Sessions are the node's BGP sessions: at most 64, those that are not established first.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=peer
	Sessions []SessionStatus `json:"sessions,omitempty"`

	// VIPs counts the VIPs of the node.
	//
	// +optional
	VIPs VIPCounts `json:"vips,omitempty"`

	// Exceptions are VIPs that the node should announce but does not, because of a fault of the node or of
	// its sessions: the first 32 by address. vips.withheld counts all.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=address
	Exceptions []VIPException `json:"exceptions,omitempty"`

	// Duplicates are hosts on the node's links that have the address of a VIP: the first 32 by address,
	// withheld ones first.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=address
	Duplicates []DuplicateAddress `json:"duplicates,omitempty"`

	// L2VIPs lists VIPs that the node answers for on its links (VIPAdvertisement spec.l2): the first 256
	// by address.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=39
	// +listType=atomic
	L2VIPs []string `json:"l2VIPs,omitempty"`

	// ServicesOverCapacity are Services that do not fit into the node's maps completely (reason MapFull): the
	// first 32 by namespace and name.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	ServicesOverCapacity []ServiceReference `json:"servicesOverCapacity,omitempty"`

	// TunnelKeys are the keys for authenticating packets between nodes. Absent if the agent has no key.
	//
	// +optional
	TunnelKeys *TunnelKeysStatus `json:"tunnelKeys,omitempty"`

	// Conditions of the agent: Ready, Programmed, Attached, BGPEstablished, TunnelKey; NodesReachable and
	// RemovalsApplied, present only while they are False. Conditions of the operator: NodeReady, present
	// only while the Node is not ready, and TunnelKeyCurrent, present only while a change of the tunnel's
	// key waits for the node.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// TunnelKeysStatus are the generations of the keys that a node's data plane uses. The keys themselves are
// in a Secret.
type TunnelKeysStatus struct {
	// Accepted are the keys that the node accepts from other nodes.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=4
	// +listType=set
	Accepted []int64 `json:"accepted,omitempty"`

	// Sending is the key with which the node sends; 0 if it has no key.
	//
	// +optional
	Sending int64 `json:"sending"`

	// Required is true if the node drops packets of other nodes without a valid tag.
	//
	// +optional
	Required bool `json:"required"`
}

// ServiceReference identifies a Service.
type ServiceReference struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// VIPCounts counts the VIPs of a node.
type VIPCounts struct {
	// Programmed is the number of VIPs in the node's maps.
	//
	// +optional
	Programmed int32 `json:"programmed"`

	// Announced is the number of VIPs that are announced to at least one peer.
	//
	// +optional
	Announced int32 `json:"announced"`

	// Withheld counts the VIPs that are not announced, by reason.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=reason
	Withheld []WithheldCount `json:"withheld,omitempty"`
}

// WithheldCount is the number of VIPs that are not announced for a reason.
type WithheldCount struct {
	// Reason is one word.
	Reason string `json:"reason"`
	Count  int32  `json:"count"`
}

// VIPException represents a VIP that is not announced although it should be.
type VIPException struct {
	Address string `json:"address"`
	// Reason is one word, Message a sentence.
	Reason string `json:"reason"`
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`
}

// DuplicateAddress represents a host that has the address of a VIP.
type DuplicateAddress struct {
	// Address is the VIP.
	Address string `json:"address"`
	// Interface is the node's interface on whose link the host answers.
	Interface string `json:"interface"`
	// HardwareAddress is the host's hardware address, such as 02:00:5e:10:00:01.
	HardwareAddress string `json:"hardwareAddress"`
	// Withheld is true if the node does not announce the VIP, because the host had the address first.
	//
	// +optional
	Withheld bool `json:"withheld,omitempty"`
}

// XDPMode represents the mode of an interface's XDP program.
//
// +kubebuilder:validation:Enum=Native;Generic;None
type XDPMode string

// Modes of XDP.
const (
	XDPNative  XDPMode = "Native"
	XDPGeneric XDPMode = "Generic"
	XDPNone    XDPMode = "None"
)

// InterfaceStatus represents the state of one uplink.
type InterfaceStatus struct {
	Name    string  `json:"name"`
	XDPMode XDPMode `json:"xdpMode"`
	// Message is the reason why the programs are not attached, or why the mode is not Native. For a VLAN it
	// names the lower interface, which runs the XDP program.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// SessionState represents the state of a BGP session (RFC 4271, section 8.2.2).
//
// +kubebuilder:validation:Enum=Idle;Connect;Active;OpenSent;OpenConfirm;Established
type SessionState string

// States of a session.
const (
	SessionIdle        SessionState = "Idle"
	SessionConnect     SessionState = "Connect"
	SessionActive      SessionState = "Active"
	SessionOpenSent    SessionState = "OpenSent"
	SessionOpenConfirm SessionState = "OpenConfirm"
	SessionEstablished SessionState = "Established"
)

// SessionStatus represents the state of one BGP session.
type SessionStatus struct {
	// Peer is the name of the LBPeer.
	Peer    string       `json:"peer"`
	Address string       `json:"address"`
	State   SessionState `json:"state"`
	// Since is the time at which the session last entered or left Established.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Withheld are the families whose routes an established session does not carry, because the router
	// lacks a capability, or the node has no next hop of the family.
	//
	// +optional
	// +listType=set
	Withheld []AddressFamily `json:"withheld,omitempty"`
	// Message is the reason why the session is not established, or why routes are withheld.
	//
	// +optional
	Message string `json:"message,omitempty"`
	// BFD is the state of the BFD session with the router, if the LBPeer configures one.
	//
	// +optional
	BFD *BFDStatus `json:"bfd,omitempty"`
	// Canaries are the results of probes through the router, for the first 16 established sessions with
	// canaries.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +listType=map
	// +listMapKey=address
	Canaries []CanaryStatus `json:"canaries,omitempty"`
}

// CanaryStatus represents the result of a node's probes to a canary through a router. Probes use 64 source
// ports, so that the router spreads them over the nodes like connections.
type CanaryStatus struct {
	// Address is the canary.
	Address string `json:"address"`
	// Announced is true if the node has announced the canary to the router for some seconds.
	//
	// +optional
	Announced bool `json:"announced,omitempty"`
	// Reached are the ids of the nodes that answered, such as 1-4,7.
	//
	// +optional
	Reached string `json:"reached,omitempty"`
	// Unanswered is the number of the 64 ports without an answer. Absent until it is known.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=64
	Unanswered *int32 `json:"unanswered,omitempty"`
	// ReachedBySmallProbes are the ids of nodes that answer short probes, but no longer those as long as the MTU
	// of the uplink.
	//
	// +optional
	ReachedBySmallProbes string `json:"reachedBySmallProbes,omitempty"`
}

// LBNodeReportList is a list of LBNodeReports.
//
// +kubebuilder:object:root=true
type LBNodeReportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LBNodeReport `json:"items"`
}
