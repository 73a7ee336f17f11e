// SPDX-License-Identifier: Apache-2.0

// Package report turns what the API server holds into what an operator of a
// cluster asks first: which VIPs there are, who announces them, how the nodes
// do, and what is wrong. It is pure.
package report

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// Input is what the API server held at about one moment.
type Input struct {
	Services       []corev1.Service
	EndpointSlices []discoveryv1.EndpointSlice
	// Namespace that Millrace is installed in, and the Pods there.
	Namespace      string
	Pods           []corev1.Pod
	Pools          []millracev1alpha1.IPPool
	VIPs           []millracev1alpha1.VIP
	Peers          []millracev1alpha1.BGPPeer
	Advertisements []millracev1alpha1.BGPAdvertisement
	LBNodes        []millracev1alpha1.LBNode
}

// View is the report. Its lists are sorted, so that two reports of the same
// state are equal.
type View struct {
	VIPs     []VIP     `json:"vips"`
	Nodes    []Node    `json:"nodes"`
	Problems []Problem `json:"problems"`
	// Next are the steps that are missing before a Service is served.
	Next []string `json:"next,omitempty"`
}

// VIP is one allocated or reserved address.
type VIP struct {
	Address string `json:"address"`
	Pool    string `json:"pool,omitempty"`
	// Services that have the address; none where it is reserved.
	Services []Service `json:"services,omitempty"`
	// Programmed is the number of nodes that have the address in their maps.
	Programmed int `json:"programmed"`
	// AnnouncedBy are the nodes that announce it, WithheldBy those that have
	// it programmed and do not.
	AnnouncedBy []Announcement `json:"announcedBy,omitempty"`
	WithheldBy  []Withheld     `json:"withheldBy,omitempty"`
}

// InUse tells whether a Service that exists has the address.
func (v VIP) InUse() bool {
	return slices.ContainsFunc(v.Services, func(service Service) bool { return service.TrafficPolicy != "" })
}

// Service is a Service on a VIP.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// TrafficPolicy is its externalTrafficPolicy; empty where the Service is
	// gone.
	TrafficPolicy string `json:"trafficPolicy,omitempty"`
	// Ready and Total count its endpoints of the VIP's family; those that
	// terminate are not counted.
	Ready int `json:"readyEndpoints"`
	Total int `json:"totalEndpoints"`
	// Ports of the VIP that are the Service's, as "53/UDP".
	Ports []string `json:"ports,omitempty"`
}

// Announcement is a node that announces a VIP, and the names of the BGPPeers.
type Announcement struct {
	Node  string   `json:"node"`
	Peers []string `json:"peers"`
}

// Withheld is why a node does not announce a VIP.
type Withheld struct {
	Node    string `json:"node"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Node is a node that forwards.
type Node struct {
	Name      string   `json:"name"`
	ID        int32    `json:"id"`
	Addresses []string `json:"addresses,omitempty"`
	Zone      string   `json:"zone,omitempty"`
	// Ready is the status of the condition Ready: True, False or Unknown.
	Ready string `json:"ready"`
	// Agent says how its agent's pod is: Ready, NotReady or Missing.
	Agent      string      `json:"agent"`
	Version    string      `json:"version,omitempty"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	Sessions   []Session   `json:"sessions,omitempty"`
	// Programmed and Announced are numbers of VIPs.
	Programmed int `json:"programmedVIPs"`
	Announced  int `json:"announcedVIPs"`
}

// States of an agent's pod.
const (
	AgentReady    = "Ready"
	AgentNotReady = "NotReady"
	AgentMissing  = "Missing"
)

// Interface is an uplink of a node.
type Interface struct {
	Name    string `json:"name"`
	XDPMode string `json:"xdpMode"`
}

// Session is a BGP session of a node.
type Session struct {
	Peer    string `json:"peer"`
	Address string `json:"address"`
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
}

// Established returns how many of the node's sessions are established.
func (n Node) Established() int {
	count := 0
	for _, session := range n.Sessions {
		if session.State == string(millracev1alpha1.SessionEstablished) {
			count++
		}
	}
	return count
}

// Problem is something that is not as it should be.
type Problem struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Reason is one word, Message a sentence.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Object returns the object as kubectl writes it, with its namespace if any:
// "IPPool/public", "Service/web (default)".
func (p Problem) Object() string {
	if p.Namespace == "" {
		return p.Kind + "/" + p.Name
	}
	return p.Kind + "/" + p.Name + " (" + p.Namespace + ")"
}

// Reasons of problems that the report finds itself; all others are reasons of
// conditions.
const (
	ReasonNotObserved   = "NotObserved"
	ReasonNotReported   = "NotReported"
	ReasonNotRunning    = "NotRunning"
	ReasonNotReady      = "NotReady"
	ReasonNoLBNode      = "NoLBNode"
	ReasonNotAnnounced  = "NotAnnounced"
	ReasonNoEndpoint    = "NoReadyEndpoint"
	ReasonServiceGone   = "ServiceGone"
	ReasonNotInStatus   = "NotInStatus"
	ReasonNotProgrammed = "NotProgrammed"
	ReasonStaleVIP      = "StaleVIP"
	ReasonVersions      = "VersionsDiffer"
	ReasonObjects       = "NotServedAsAsked"
)
