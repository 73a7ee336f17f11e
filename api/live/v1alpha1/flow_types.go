// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Flow represents a connection of a client with a pod of a Service, or the equivalent for answered
// datagrams. Flows are listed for one Service: by the field selector service=NAME, or the label selector
// kubernetes.io/service-name=NAME. The field selector client=ADDRESS or client=PREFIX restricts the list.
//
// +kubebuilder:object:root=true
type Flow struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Service is the name of the Service.
	Service string `json:"service"`
	// Protocol is TCP, UDP or SCTP.
	Protocol string `json:"protocol"`
	// Client is the address and port of the client.
	Client string `json:"client"`
	// VIP is the address and port that the client connects to.
	VIP string `json:"vip"`
	// Endpoint is the address and port of the pod.
	//
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// Node is the node of the pod.
	Node string `json:"node"`
	// State is Established or Closing.
	State string `json:"state"`
	// LastSeen is the time of the last packet from the client, to a few seconds.
	//
	// +optional
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
}

// FlowList is a list of Flows.
//
// +kubebuilder:object:root=true
type FlowList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are sorted, the most recently seen first.
	Items []Flow `json:"items"`
}

// Drop represents a sample of the packets of a Service that were not forwarded. Drops are listed for one
// Service, by the selectors of Flows.
//
// +kubebuilder:object:root=true
type Drop struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Service is the name of the Service.
	Service string `json:"service"`
	// Time is the time of the drop.
	Time metav1.MicroTime `json:"time"`
	// Reason is one word (docs/cli.md).
	Reason string `json:"reason"`
	// Protocol is the protocol of the packet.
	Protocol string `json:"protocol"`
	// Client is the address and port of the client; the port is 0 if the packet has none.
	Client string `json:"client"`
	// VIP is the address and port that the client connects to.
	VIP string `json:"vip"`
	// Node is the node that dropped the packet.
	Node string `json:"node"`
	// Interface is the packet's incoming interface, or for a reply the intended outgoing one.
	Interface string `json:"interface"`
	// Length is the size of the IP packet in bytes.
	Length int32 `json:"length"`
}

// DropList is a list of Drops.
//
// +kubebuilder:object:root=true
type DropList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// Items are sorted, the latest first.
	Items []Drop `json:"items"`
}
