// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BGPSession is the session of a node with an LBPeer. Its name is that of the node, a dot and that
// of the LBPeer.
//
// +kubebuilder:object:root=true
type BGPSession struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Node is the name of the node.
	Node string `json:"node"`
	// Peer is the name of the LBPeer.
	Peer string `json:"peer"`
	// Address is the peer's.
	Address string `json:"address"`
	// LocalAddress is the node's in the session; it is absent without a connection.
	//
	// +optional
	LocalAddress string `json:"localAddress,omitempty"`
	// State is that of RFC 4271, section 8.2.2: Idle, Connect, Active, OpenSent, OpenConfirm or
	// Established.
	State string `json:"state"`
	// Since is when the session got into or out of Established.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// LastError is why the last session or attempt ended. It stays while the session is established
	// again.
	//
	// +optional
	LastError string `json:"lastError,omitempty"`
	// LastErrorTime is when that was.
	//
	// +optional
	LastErrorTime *metav1.Time `json:"lastErrorTime,omitempty"`
	// Flaps is how often the session was established and then lost, since the agent started.
	Flaps int64 `json:"flaps"`
	// Families are those whose routes are announced: IPv4, IPv6.
	//
	// +optional
	// +listType=atomic
	Families []string `json:"families,omitempty"`
	// RoutesSent is how many routes the peer is told, or will be once the session is established.
	RoutesSent int64 `json:"routesSent"`
	// UpdatesSent is how many UPDATE messages were sent since the agent started.
	UpdatesSent int64 `json:"updatesSent"`
	// UpdatesReceived is how many UPDATE messages came since the agent started.
	UpdatesReceived int64 `json:"updatesReceived"`
	// Due is when the session will be made again for an edited LBPeer, at the earliest.
	//
	// +optional
	Due *metav1.Time `json:"due,omitempty"`
	// BFD is the state of the BFD session; it is absent where none is wanted.
	//
	// +optional
	BFD string `json:"bfd,omitempty"`
	// BFDMessage is why that session is not up.
	//
	// +optional
	BFDMessage string `json:"bfdMessage,omitempty"`
}

// BGPSessionList is a list of BGPSessions.
//
// +kubebuilder:object:root=true
type BGPSessionList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	NodeAnswers     `json:",inline"`
	// Items are sorted by name.
	Items []BGPSession `json:"items"`
}
