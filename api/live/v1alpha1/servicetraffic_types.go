// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ServiceTraffic is the present traffic of a Service on all nodes together. It has the name of the
// Service.
//
// +kubebuilder:object:root=true
type ServiceTraffic struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Timestamp is when the counters were read, on the node that was read first. It is absent while
	// no node has told any.
	//
	// +optional
	Timestamp *metav1.Time `json:"timestamp,omitempty"`
	// Window is the time before Timestamp that the rates are of: seconds, as in 10s.
	//
	// +optional
	Window metav1.Duration `json:"window,omitempty"`
	// Rates are those of all nodes together.
	Rates TrafficRates `json:"rates"`
	// Drops are packets per second that were not forwarded, by reason (docs/cli.md).
	//
	// +optional
	Drops map[string]float64 `json:"drops,omitempty"`
	// Endpoints are those of the Service's EndpointSlices.
	Endpoints EndpointCount `json:"endpoints"`
	// Nodes are those with an agent.
	Nodes NodeCount `json:"nodes"`
	// Frontends are the parts of the Service that rates are the sum of, sorted: one of each
	// address, port and protocol.
	//
	// +optional
	// +listType=atomic
	Frontends []FrontendTraffic `json:"frontends,omitempty"`
}

// FrontendTraffic is the traffic of one address, port and protocol of a Service.
type FrontendTraffic struct {
	// VIP is the address.
	VIP string `json:"vip"`
	// Port is that of the VIP.
	Port int32 `json:"port"`
	// Protocol is TCP, UDP or SCTP.
	Protocol string `json:"protocol"`
	// Rates are those of all nodes together.
	Rates TrafficRates `json:"rates"`
}

// UplinkLosses is how many frames the driver of an interface did not take.
type UplinkLosses struct {
	// Node is the name of the node, and Interface that of the uplink.
	Node      string `json:"node"`
	Interface string `json:"interface"`
	// Transmit is how many frames per second were to leave where they came in.
	Transmit float64 `json:"transmit"`
	// Redirect is how many frames per second had come in by another interface.
	Redirect float64 `json:"redirect"`
}

// TrafficRates are means over the window.
type TrafficRates struct {
	// Connections is how many new connections pods got, per second.
	Connections float64 `json:"connections"`
	// Packets is how many packets of clients nodes got from routers, per second.
	Packets float64 `json:"packets"`
	// Bits is how many bits these packets had, per second, with their IP headers.
	Bits float64 `json:"bits"`
	// Drops is how many packets were not forwarded, for all reasons, per second.
	Drops float64 `json:"drops"`
}

// EndpointCount counts endpoints. A pod with an IPv4 and an IPv6 address counts twice.
type EndpointCount struct {
	// Ready is how many of them are ready.
	Ready int32 `json:"ready"`
	// Total is how many there are.
	Total int32 `json:"total"`
}

// NodeCount counts nodes.
type NodeCount struct {
	// Announcing is how many nodes announce an address of the Service to a router at least.
	Announcing int32 `json:"announcing"`
	// Total is how many nodes have an agent.
	Total int32 `json:"total"`
}

// ServiceTrafficList is a list of ServiceTraffic.
//
// +kubebuilder:object:root=true
type ServiceTrafficList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// AnsweredNodes is how many nodes the list is of. All others did not answer.
	//
	// +optional
	AnsweredNodes int32 `json:"answeredNodes,omitempty"`
	// Window is the time that the rates are of: seconds, as in 10s.
	//
	// +optional
	Window metav1.Duration `json:"window,omitempty"`
	// Drops are all packets per second that were not forwarded, by reason, also those for no
	// Service. They are in lists of all namespaces.
	//
	// +optional
	Drops map[string]float64 `json:"drops,omitempty"`
	// Uplinks are those that lost frames. They are in lists of all namespaces.
	//
	// +optional
	// +listType=atomic
	Uplinks []UplinkLosses `json:"uplinks,omitempty"`
	// Items are sorted by namespace and name.
	Items []ServiceTraffic `json:"items"`
}
