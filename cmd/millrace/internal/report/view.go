// SPDX-License-Identifier: Apache-2.0

// Package report computes a report of a cluster from API objects and agents' answers: VIPs, nodes and
// problems. It is pure, and linear in its input: no list is searched for each item of another.
package report

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Input are the objects of the API server and the answers of agents, at about one moment.
type Input struct {
	Services       []corev1.Service
	EndpointSlices []discoveryv1.EndpointSlice
	Namespace      string
	Pods           []corev1.Pod
	Pools          []millracev1beta1.VIPPool
	VIPs           []millracev1beta1.VIP
	Peers          []millracev1beta1.LBPeer
	Advertisements []millracev1beta1.VIPAdvertisement
	Routes         []millracev1beta1.VIPRoute
	LBNodes        []millracev1beta1.LBNode
	LBNodeReports  []millracev1beta1.LBNodeReport
	Agents         Agents
	// Sole is the only namespace whose objects are known; empty: all are.
	Sole string
	// Omitted are the kinds that the user may not list, such as LBNodes.
	Omitted []string
	// Traffic counts the announcing nodes of Services without answers of agents; nil: unknown.
	Traffic *livev1alpha1.ServiceTrafficList
	// Unassigned are requested Services without a VIP.
	Unassigned []types.NamespacedName
}

func (in *Input) lacks(kind string) bool { return slices.Contains(in.Omitted, kind) }

// Agents are the agents' answers to the command vips, or those of the aggregated API.
type Agents struct {
	Responses map[string]*consoleapi.VIPs
	Failures  map[string]string
	// Forbidden is true if the user may not query agents, LiveForbidden if an aggregated API is forbidden,
	// too.
	Forbidden, LiveForbidden bool
}

// View is the report, sorted so that reports of equal states are equal.
type View struct {
	VIPs     []VIP     `json:"vips"`
	Nodes    []Node    `json:"nodes"`
	Problems []Problem `json:"problems"`
	// Answered counts agents with known announcements; for other nodes only counts are known.
	Answered int `json:"answeredAgents"`
	// Remarks describe data missing from the report, with the reason.
	Remarks []string `json:"remarks,omitempty"`
	// Unassigned are the requested Services without a VIP, with the reason.
	Unassigned []Problem `json:"-"`
	// Sole is the only namespace of the report; empty: all.
	Sole string `json:"namespace,omitempty"`
	// Next are the missing steps before a Service is served.
	Next []string `json:"next,omitempty"`
}

// Allocation is an address with its pool, if any.
type Allocation struct {
	Address string `json:"address"`
	Pool    string `json:"pool,omitempty"`
}

// VIP is an allocated or reserved address.
type VIP struct {
	Object string `json:"-"`
	Allocation
	// Services that have the address; empty for a reserved address.
	Services []Service `json:"services,omitempty"`
	// Programmed counts the answering nodes with the address in their maps.
	Programmed int `json:"programmed"`
	// AnnouncedBy are the nodes that announce it, WithheldBy those that have it programmed but do not.
	AnnouncedBy []Announcement `json:"announcedBy,omitempty"`
	WithheldBy  []Withheld     `json:"withheldBy,omitempty"`
	// NotAnnounced is why no node can announce it according to the condition Announced, or empty.
	NotAnnounced string `json:"notAnnounced,omitempty"`
}

// InUse reports whether a Service that exists has the address.
func (v VIP) InUse() bool {
	return slices.ContainsFunc(v.Services, func(service Service) bool { return service.TrafficPolicy != "" })
}

// Announcers returns the number of nodes that announce the VIP.
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
	// TrafficPolicy is its externalTrafficPolicy; empty if the Service was deleted.
	TrafficPolicy string `json:"trafficPolicy,omitempty"`
	// Ready and Total count its endpoints of the VIP's family, without terminating ones.
	Ready int `json:"readyEndpoints"`
	Total int `json:"totalEndpoints"`
	// Announcing counts the nodes that announce a VIP of the Service, of Nodes; absent if only agents
	// know it.
	Announcing *int32 `json:"announcingNodes,omitempty"`
	Nodes      int32  `json:"nodes,omitempty"`
	// Ports are the Service's ports on the VIP, such as "53/UDP".
	Ports []string `json:"ports,omitempty"`
	// Backends of VIPRoutes, whose endpoints are counted instead of the Service's.
	Backends []Backend `json:"backends,omitempty"`
}

// Backend is a Service that a VIPRoute forwards a port to.
type Backend struct {
	Port string `json:"port"`
	// Namespace and Name are empty if the VIPRoute names no Service.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Weight    int32  `json:"weight"`
	// Refused is true if connections to it are rejected.
	Refused bool `json:"refused,omitempty"`
	Ready   int  `json:"readyEndpoints"`
	Total   int  `json:"totalEndpoints"`
}

// Announcement is a group of nodes that announce a VIP to the same LBPeers.
type Announcement struct {
	Peers []string `json:"peers"`
	Nodes []string `json:"nodes"`
}

// Withheld is a group of nodes that do not announce a VIP for the same reason.
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
	// DrainReason is the reason why the node withdraws its routes, or empty.
	DrainReason string `json:"drainReason,omitempty"`
	// Agent is the state of the agent's pod: Ready, NotReady, Missing or Unknown.
	Agent      string      `json:"agent"`
	Version    string      `json:"version,omitempty"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	Sessions   []Session   `json:"sessions,omitempty"`
	// Programmed and Announced are the counts of VIPs in the node's LBNodeReport.
	Programmed int `json:"programmedVIPs"`
	Announced  int `json:"announcedVIPs"`
}

// States of an agent's pod.
const (
	AgentReady    = "Ready"
	AgentNotReady = "NotReady"
	AgentMissing  = "Missing"
	AgentUnknown  = "Unknown"
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

// Established returns the number of established sessions of the node.
func (n Node) Established() int {
	count := 0
	for _, session := range n.Sessions {
		if session.State == string(millracev1beta1.SessionEstablished) {
			count++
		}
	}
	return count
}

// Problem is a fault of an object.
type Problem struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Reason is one word, Message a sentence.
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Since is the time of the condition's transition, or zero if unknown.
	Since time.Time `json:"since,omitzero"`
	// common is the part of Message that is equal for all objects with the same cause; empty if that is the
	// whole message.
	common string
}

// Object returns the object as in kubectl, such as "Service/web (default)".
func (p Problem) Object() string {
	if p.Namespace == "" {
		return p.Kind + "/" + p.Name
	}
	return p.Kind + "/" + p.Name + " (" + p.Namespace + ")"
}

// Reasons of millrace status: problems that the report detects itself. All others are reasons of conditions.
const (
	// ReasonNotObserved: the operator has not observed the object's current generation.
	ReasonNotObserved = "NotObserved"
	// ReasonNotRequested: the Service asks for no VIP of Millrace, by its type or class.
	ReasonNotRequested = "NotRequested"
	// ReasonNotReported: the agent has not written the LBNodeReport yet.
	ReasonNotReported = "NotReported"
	// ReasonNotRunning: a Deployment has no pod, or the node of an LBNode has no agent, so that its
	// LBNodeReport may be old.
	ReasonNotRunning = "NotRunning"
	// ReasonNotReady: pods exist, but no pod is ready. Without an operator no address is assigned or
	// released; forwarding continues.
	ReasonNotReady = "NotReady"
	// ReasonNoLBNode: an agent runs on the Node, but the operator has created no LBNode.
	ReasonNoLBNode = "NoLBNode"
	// ReasonNotAnnounced: no node announces the VIP although it has endpoints. The message has the reason.
	ReasonNotAnnounced = "NotAnnounced"
	// ReasonNoReadyEndpoint: a Service of the VIP has no ready endpoint. If this applies to all its Services, no
	// node announces the VIP.
	ReasonNoReadyEndpoint = "NoReadyEndpoint"
	// ReasonServiceNotFound: the VIP has a claim of a deleted Service. The operator removes such claims.
	ReasonServiceNotFound = "ServiceNotFound"
	// ReasonNotInStatus: the Service has the VIP, but its status does not list it.
	ReasonNotInStatus = "NotInStatus"
	// ReasonNotProgrammed: VIPs of Services are missing in the node's maps.
	ReasonNotProgrammed = "NotProgrammed"
	// ReasonStaleVIP: the node's maps have addresses that are not VIPs. This is normal for seconds after a
	// deletion.
	ReasonStaleVIP = "StaleVIP"
	// ReasonVersionMismatch: nodes run different versions, for example during an upgrade.
	ReasonVersionMismatch = "VersionMismatch"
	// ReasonPartiallyServed: agents cannot serve objects as specified, for example because of an unsupported
	// protocol.
	ReasonPartiallyServed = "PartiallyServed"
	// ReasonSingleAnnouncer: a single node announces the VIP, although other nodes should do so, too. If it fails,
	// the VIP is unreachable.
	ReasonSingleAnnouncer = "SingleAnnouncer"
	// ReasonGenericXDP: an uplink runs XDP in generic mode, for example without a native driver.
	ReasonGenericXDP = "GenericXDP"
	// ReasonCertificate: a certificate that the gateway's proxies serve has expired or expires soon, or the previous
	// one is served, because the current one is invalid.
	ReasonCertificate = "Certificate"
	// ReasonAgentUnreachable: the agent did not answer the query for its announcements.
	ReasonAgentUnreachable = "AgentUnreachable"
)
