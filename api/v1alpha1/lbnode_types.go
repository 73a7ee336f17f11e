// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LBNode is a node of the cluster as Millrace sees it; it has the name of the
// Node. The operator writes its spec, the agent on that node its status.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=millrace
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="ID",type=integer,JSONPath=`.spec.id`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="BGP",type=string,JSONPath=`.status.conditions[?(@.type=="BGPEstablished")].status`
// +kubebuilder:printcolumn:name="VIPs",type=integer,JSONPath=`.status.announcedVIPs`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.status.interfaces[*].xdpMode`
// +kubebuilder:printcolumn:name="Zone",type=string,JSONPath=`.spec.zone`,priority=1
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type LBNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   LBNodeSpec   `json:"spec"`
	Status LBNodeStatus `json:"status,omitempty"`
}

// LBNodeSpec is what the operator gives a node.
type LBNodeSpec struct {
	// ID is the node's number in encapsulated packets and in the rows of the
	// forwarding tables; it never changes.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4095
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the id of a node cannot change"
	ID int32 `json:"id"`

	// Addresses are the node's internal addresses, at most one per family:
	// where encapsulated packets to it are sent and from where they are
	// accepted (Node.status.addresses, type InternalIP).
	//
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`

	// Zone is the node's zone (label topology.kubernetes.io/zone of the Node);
	// empty where it has none. Packets that a router hands to the node go to
	// endpoints that are hinted for its zone, as far as a Service asks for that.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Zone string `json:"zone,omitempty"`

	// BootID names the present boot of the node (Node.status.nodeInfo.bootID).
	//
	// +optional
	// +kubebuilder:validation:MaxLength=128
	BootID string `json:"bootID,omitempty"`
}

// LBNodeStatus is what the node's agent observed.
type LBNodeStatus struct {
	// Version of the agent.
	//
	// +optional
	Version string `json:"version,omitempty"`

	// BootID is what spec.bootID was when the agent last had everything in the maps
	// and its programs attached. Where the two differ, the node has booted since
	// and its agent is not up yet: the other nodes send it nothing until it is.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=128
	BootID string `json:"bootID,omitempty"`

	// Interfaces are the node's uplinks.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	Interfaces []InterfaceStatus `json:"interfaces,omitempty"`

	// Sessions are the node's BGP sessions.
	//
	// +optional
	// +listType=map
	// +listMapKey=peer
	Sessions []SessionStatus `json:"sessions,omitempty"`

	// VIPs are the addresses that the node has programmed.
	//
	// +optional
	// +listType=map
	// +listMapKey=address
	VIPs []NodeVIPStatus `json:"vips,omitempty"`

	// AnnouncedVIPs is the number of VIPs that are announced to at least one
	// peer.
	//
	// +optional
	AnnouncedVIPs int32 `json:"announcedVIPs"`

	// Conditions: Ready, Programmed, Attached, BGPEstablished.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// XDPMode is how an interface runs the XDP program.
//
// +kubebuilder:validation:Enum=Native;Generic;None
type XDPMode string

// Modes of XDP.
const (
	XDPNative  XDPMode = "Native"
	XDPGeneric XDPMode = "Generic"
	XDPNone    XDPMode = "None"
)

// InterfaceStatus is the state of one uplink.
type InterfaceStatus struct {
	Name    string  `json:"name"`
	XDPMode XDPMode `json:"xdpMode"`
	// Message says why the programs are not attached, or why the mode is not
	// Native, and which interface runs the XDP program where it is not this one:
	// that below a VLAN.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// SessionState is the state of a BGP session (RFC 4271, section 8.2.2).
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

// SessionStatus is the state of one BGP session.
type SessionStatus struct {
	// Peer is the name of the BGPPeer.
	Peer    string       `json:"peer"`
	Address string       `json:"address"`
	State   SessionState `json:"state"`
	// Since is when the session got into or out of Established.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Message says why the session is not established.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// NodeVIPStatus is the state of one VIP on a node.
type NodeVIPStatus struct {
	Address string `json:"address"`
	// AnnouncedTo are the names of the BGPPeers, with an established session,
	// that the address is announced to.
	//
	// +optional
	// +listType=set
	AnnouncedTo []string `json:"announcedTo,omitempty"`
	// Reason says why the address is not announced, in one word; Message in
	// a sentence.
	//
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
}

// LBNodeList is a list of LBNodes.
//
// +kubebuilder:object:root=true
type LBNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LBNode `json:"items"`
}
