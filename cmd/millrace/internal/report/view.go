// SPDX-License-Identifier: Apache-2.0

// Package report makes a report of a cluster from the API server's objects and the
// answers of the agents. It has the VIPs and the nodes that announce them, the nodes, and
// every problem. It is pure, and its work grows with its input: no list is searched for
// each item of another.
package report

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Input is what the API server held, and what agents answered, at about one moment.
type Input struct {
	Services       []corev1.Service
	EndpointSlices []discoveryv1.EndpointSlice
	// Namespace that Millrace is installed in, and the Pods there.
	Namespace      string
	Pods           []corev1.Pod
	Pools          []millracev1beta1.VIPPool
	VIPs           []millracev1beta1.VIP
	Peers          []millracev1beta1.LBPeer
	Advertisements []millracev1beta1.VIPAdvertisement
	Routes         []millracev1beta1.VIPRoute
	LBNodes        []millracev1beta1.LBNode
	LBNodeReports  []millracev1beta1.LBNodeReport
	// Agents is what the agents themselves said; no object lists what each node
	// announces.
	Agents Agents
}

// Agents are the answers of the agents' consoles to the command vips, or what the aggregated API says
// in their place.
type Agents struct {
	// Answers are by node.
	Answers map[string]*consoleapi.VIPs
	// Failures say, by node, why an agent that was asked did not answer.
	Failures map[string]string
	// Forbidden is true where the reader may not ask agents, and LiveForbidden where the aggregated
	// API is there and may not be read either.
	Forbidden, LiveForbidden bool
}

// View is the report. Its lists are sorted, so that two reports of the same
// state are equal.
type View struct {
	VIPs     []VIP     `json:"vips"`
	Nodes    []Node    `json:"nodes"`
	Problems []Problem `json:"problems"`
	// Answered is the number of agents that said which VIPs they announce. Of other nodes
	// only the counts are known.
	Answered int `json:"answeredAgents"`
	// Remarks say what the report leaves out, and why.
	Remarks []string `json:"remarks,omitempty"`
	// Next are the steps that are missing before a Service is served.
	Next []string `json:"next,omitempty"`
}

// Allocation is an address and the pool that it is from, if any.
type Allocation struct {
	Address string `json:"address"`
	Pool    string `json:"pool,omitempty"`
}

// VIP is one allocated or reserved address.
type VIP struct {
	// Object is the name of the VIP object.
	Object string `json:"-"`
	Allocation
	// Services that have the address; none where it is reserved.
	Services []Service `json:"services,omitempty"`
	// Programmed is the number of nodes that have the address in their maps, of those
	// whose agents answered.
	Programmed int `json:"programmed"`
	// AnnouncedBy are the nodes that announce it, WithheldBy those that know it and do not.
	AnnouncedBy []Announcement `json:"announcedBy,omitempty"`
	WithheldBy  []Withheld     `json:"withheldBy,omitempty"`
}

// InUse reports whether a Service that exists has the address.
func (v VIP) InUse() bool {
	return slices.ContainsFunc(v.Services, func(service Service) bool { return service.TrafficPolicy != "" })
}

// Announcers returns how many nodes announce the VIP.
func (v VIP) Announcers() int {
	count := 0
	for _, announcement := range v.AnnouncedBy {
		count += len(announcement.Nodes)
	}
	return count
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
	// Backends are the Services that VIPRoutes lead its ports to. Their endpoints are
	// counted in place of its own.
	Backends []Backend `json:"backends,omitempty"`
}

// Backend is a Service that a VIPRoute leads a port to.
type Backend struct {
	// Port is that of the VIP, as "53/UDP".
	Port string `json:"port"`
	// Namespace and Name are empty where the VIPRoute names no Service.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Weight    int32  `json:"weight"`
	// Refused is true where its share is refused.
	Refused bool `json:"refused,omitempty"`
	Ready   int  `json:"readyEndpoints"`
	Total   int  `json:"totalEndpoints"`
}

// Announcement are the nodes that announce a VIP to the same LBPeers.
type Announcement struct {
	Peers []string `json:"peers"`
	Nodes []string `json:"nodes"`
}

// Withheld are the nodes that do not announce a VIP, for the same reason.
type Withheld struct {
	Reason  string   `json:"reason,omitempty"`
	Message string   `json:"message,omitempty"`
	Nodes   []string `json:"nodes"`
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
	// Programmed and Announced are numbers of VIPs, as the node's LBNodeReport has them.
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
	Message string `json:"message,omitempty"`
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
		if session.State == string(millracev1beta1.SessionEstablished) {
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
// "VIPPool/public", "Service/web (default)".
func (p Problem) Object() string {
	if p.Namespace == "" {
		return p.Kind + "/" + p.Name
	}
	return p.Kind + "/" + p.Name + " (" + p.Namespace + ")"
}

// Reasons of millrace status: problems that it finds itself. All others are reasons of conditions.
const (
	// ReasonNotObserved: the operator has not observed the object as it is now.
	ReasonNotObserved = "NotObserved"
	// ReasonNotReported: of an LBNode: the agent has not written its LBNodeReport yet.
	ReasonNotReported = "NotReported"
	// ReasonNotRunning: of a Deployment: no pod is there. Of an LBNode: the node has no agent, and
	// its LBNodeReport may be old.
	ReasonNotRunning = "NotRunning"
	// ReasonNotReady: pods are there, and none is ready. Without an operator no Service gets or
	// gives back an address; forwarding goes on.
	ReasonNotReady = "NotReady"
	// ReasonNoLBNode: an agent runs on the Node, but the operator gave it no LBNode.
	ReasonNoLBNode = "NoLBNode"
	// ReasonNotAnnounced: no node announces the VIP although there are endpoints. The message has a
	// reason.
	ReasonNotAnnounced = "NotAnnounced"
	// ReasonNoEndpoint: a Service of the VIP has no ready endpoint. Where that is so of all, no
	// node announces it.
	ReasonNoEndpoint = "NoReadyEndpoint"
	// ReasonServiceGone: the VIP is claimed for a Service that is gone. The operator takes the
	// claim back.
	ReasonServiceGone = "ServiceGone"
	// ReasonNotInStatus: the Service has the VIP, but its status does not list it.
	ReasonNotInStatus = "NotInStatus"
	// ReasonNotProgrammed: VIPs that belong to a Service are not in the node's maps.
	ReasonNotProgrammed = "NotProgrammed"
	// ReasonStaleVIP: the node's maps have addresses that are no VIPs. It is normal for seconds
	// after a deletion.
	ReasonStaleVIP = "StaleVIP"
	// ReasonVersions: nodes run different versions, as during an upgrade.
	ReasonVersions = "VersionsDiffer"
	// ReasonObjects: agents tell of objects that they do not serve as asked, such as an unserved
	// protocol.
	ReasonObjects = "NotServedAsAsked"
	// ReasonOneNode: where the only node that announces the VIP fails, the VIP is away. It is shown
	// only where other nodes should announce it, too.
	ReasonOneNode = "AnnouncedByOneNode"
	// ReasonGenericXDP: an uplink runs XDP in generic mode, for example without a native driver.
	ReasonGenericXDP = "GenericXDP"
	// ReasonNoAnswer: the agent was asked what it announces, and did not say.
	ReasonNoAnswer = "AgentDoesNotAnswer"
)
