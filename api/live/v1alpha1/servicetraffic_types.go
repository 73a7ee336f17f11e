// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ServiceTraffic represents the current traffic of a Service, summed over all nodes. It has the name of the
// Service.
//
// +kubebuilder:object:root=true
type ServiceTraffic struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Timestamp is the time of the oldest sample of a node. It is absent until a node has answered.
	//
	// +optional
	Timestamp *metav1.Time `json:"timestamp,omitempty"`
	// Window is the averaging period of the rates before Timestamp, such as 10s.
	//
	// +optional
	Window metav1.Duration `json:"window,omitempty"`
	// Rates are summed over all nodes.
	Rates TrafficRates `json:"rates"`
	// Drops are packets per second that were not forwarded, by reason (docs/cli.md).
	//
	// +optional
	Drops map[string]float64 `json:"drops,omitempty"`
	// Endpoints counts the endpoints in the Service's EndpointSlices.
	Endpoints EndpointCount `json:"endpoints"`
	// Nodes counts the nodes with an agent.
	Nodes NodeCount `json:"nodes"`
	// Frontends are the addresses, ports and protocols of the Service, sorted. Rates is the sum of their
	// rates.
	//
	// +optional
	// +listType=atomic
	Frontends []FrontendTraffic `json:"frontends,omitempty"`
}

// FrontendTraffic represents the traffic of one address, port and protocol of a Service.
type FrontendTraffic struct {
	// VIP is the address.
	VIP string `json:"vip"`
	// Port is the port of the VIP.
	Port int32 `json:"port"`
	// Protocol is TCP, UDP or SCTP.
	Protocol string `json:"protocol"`
	// Rates are summed over all nodes.
	Rates TrafficRates `json:"rates"`
}

// UplinkDrops counts frames that the driver of an interface did not accept.
type UplinkDrops struct {
	// Node is the name of the node, and Interface the name of the uplink.
	Node      string `json:"node"`
	Interface string `json:"interface"`
	// Transmit is the number of frames per second for the interface that they arrived on.
	Transmit float64 `json:"transmit"`
	// Redirect is the number of frames per second from other interfaces.
	Redirect float64 `json:"redirect"`
}

// TrafficRates are means over the window.
type TrafficRates struct {
	// Connections is the number of new connections to pods per second.
	Connections float64 `json:"connections"`
	// Packets is the number of client packets per second that nodes received from routers.
	Packets float64 `json:"packets"`
	// Bits is the size of these packets in bits per second, including IP headers.
	Bits float64 `json:"bits"`
	// Drops is the number of packets per second that were not forwarded, for all reasons.
	Drops float64 `json:"drops"`
}

// EndpointCount counts endpoints. A pod with an IPv4 and an IPv6 address counts twice.
type EndpointCount struct {
	// Ready is the number of ready endpoints.
	Ready int32 `json:"ready"`
	// Total is the number of all endpoints.
	Total int32 `json:"total"`
}

// NodeCount counts nodes.
type NodeCount struct {
	// Announcing is the number of nodes that announce an address of the Service to at least one router.
	Announcing int32 `json:"announcing"`
	// Total is the number of nodes with an agent.
	Total int32 `json:"total"`
}

// ServiceTrafficList is a list of ServiceTraffic.
//
// +kubebuilder:object:root=true
type ServiceTrafficList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// AnsweredNodes is the number of nodes in the sums. All others did not answer.
	//
	// +optional
	AnsweredNodes int32 `json:"answeredNodes,omitempty"`
	// Window is the averaging period of the rates, such as 10s.
	//
	// +optional
	Window metav1.Duration `json:"window,omitempty"`
	// Drops are all packets per second that were not forwarded, by reason, including those for no Service.
	// They are only in lists of all namespaces.
	//
	// +optional
	Drops map[string]float64 `json:"drops,omitempty"`
	// Uplinks are the uplinks that lost frames. They are only in lists of all namespaces.
	//
	// +optional
	// +listType=atomic
	Uplinks []UplinkDrops `json:"uplinks,omitempty"`
	// Items are sorted by namespace and name.
	Items []ServiceTraffic `json:"items"`
}
