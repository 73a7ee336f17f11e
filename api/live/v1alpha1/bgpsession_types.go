// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BGPSession represents the session of a node with an LBPeer. Its name is the name of the node, a dot and
// the name of the LBPeer.
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
	// Address is the peer's address.
	Address string `json:"address"`
	// LocalAddress is the node's address in the session; absent without a connection.
	//
	// +optional
	LocalAddress string `json:"localAddress,omitempty"`
	// State is the state of RFC 4271, section 8.2.2: Idle, Connect, Active, OpenSent, OpenConfirm or
	// Established.
	State string `json:"state"`
	// Since is the time at which the session last entered or left Established.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// LastError is the reason why the last session or attempt ended. It is kept while the next session is
	// established.
	//
	// +optional
	LastError string `json:"lastError,omitempty"`
	// LastErrorTime is the time of LastError.
	//
	// +optional
	LastErrorTime *metav1.Time `json:"lastErrorTime,omitempty"`
	// Flaps counts the lost sessions since the agent started.
	Flaps int64 `json:"flaps"`
	// Families are the announced address families: IPv4, IPv6.
	//
	// +optional
	// +listType=atomic
	Families []string `json:"families,omitempty"`
	// RoutesSent is the number of routes that are announced to the peer, or will be once the session is
	// established.
	RoutesSent int64 `json:"routesSent"`
	// UpdatesSent counts UPDATE messages sent since the agent started.
	UpdatesSent int64 `json:"updatesSent"`
	// UpdatesReceived counts UPDATE messages received since the agent started.
	UpdatesReceived int64 `json:"updatesReceived"`
	// Due is the earliest time at which the session restarts because of a changed LBPeer.
	//
	// +optional
	Due *metav1.Time `json:"due,omitempty"`
	// BFD is the state of the BFD session; absent unless one is configured.
	//
	// +optional
	BFD string `json:"bfd,omitempty"`
	// BFDMessage is the reason why the BFD session is not up.
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
