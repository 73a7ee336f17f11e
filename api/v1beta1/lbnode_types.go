// SPDX-License-Identifier: Apache-2.0

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LBNode is the identity of a node: what the other nodes need to know of it. It has
// the name of the Node. All agents watch all LBNodes, so it stays small and is
// rarely written. What the node's agent observed is in its LBNodeReport.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=millrace,shortName=lbn
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="ID",type=integer,JSONPath=`.spec.id`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="Zone",type=string,JSONPath=`.spec.zone`
// +kubebuilder:printcolumn:name="Departure",type=string,JSONPath=`.spec.departure`
// +kubebuilder:printcolumn:name="Boot",type=string,JSONPath=`.status.bootID`,priority=1
// +kubebuilder:printcolumn:name="Serving",type=string,JSONPath=`.status.servingBootID`,priority=1
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
	// +kubebuilder:validation:Maximum=16383
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

	// PodCIDRs are the networks of the node's pods, at most one per family
	// (Node.spec.podCIDRs). An endpoint without a nodeName (EndpointSlice,
	// discovery.k8s.io/v1) whose address is in them is taken for one of the node.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +listType=atomic
	PodCIDRs []string `json:"podCIDRs,omitempty"`

	// Zone is the node's zone (label topology.kubernetes.io/zone of the Node);
	// empty where it has none. Packets that a router hands to the node go to
	// endpoints that are hinted for its zone, as far as a Service asks for that.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Zone string `json:"zone,omitempty"`

	// Departure is why the node hands over its routes: the other nodes take its packets.
	// Empty: it stays.
	//
	// +optional
	Departure Departure `json:"departure,omitempty"`
}

// Departure is why a node hands over its routes to other nodes, before it goes.
//
// +kubebuilder:validation:Enum=Cordoned;Excluded;Drained;ShuttingDown;OutOfService
type Departure string

// Reasons of a departure: LBNode.spec.departure. See docs/operate.md#take-a-node-out.
const (
	// DepartureCordoned: Node.spec.unschedulable, as kubectl cordon and drain set it.
	DepartureCordoned Departure = "Cordoned"
	// DepartureExcluded: label node.kubernetes.io/exclude-from-external-load-balancers.
	DepartureExcluded Departure = "Excluded"
	// DepartureDrained: annotation millrace.io/drain, of `millrace drain`.
	DepartureDrained Departure = "Drained"
	// DepartureShuttingDown: kubelet's graceful node shutdown.
	DepartureShuttingDown Departure = "ShuttingDown"
	// DepartureOutOfService: taint node.kubernetes.io/out-of-service, or
	// node.cloudprovider.kubernetes.io/shutdown.
	DepartureOutOfService Departure = "OutOfService"
)

// LBNodeStatus is what the other nodes need to know of a node's agent. Its agent
// writes it, at most twice in each boot, and when it comes to answer for VIPs elsewhere.
type LBNodeStatus struct {
	// BootID names the present boot of the node, as its agent reads it from the
	// kernel when it starts (/proc/sys/kernel/random/boot_id).
	//
	// +optional
	// +kubebuilder:validation:MaxLength=128
	BootID string `json:"bootID,omitempty"`

	// ServingBootID is the boot in which the agent last had its programs attached and
	// in the maps what the node forwards by. A single frontend or node that cannot be
	// written does not count. While it differs from bootID, the node has booted and
	// its agent is not up yet: the other nodes send it nothing. The same holds while
	// both are empty.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ServingBootID string `json:"servingBootID,omitempty"`

	// L2 says where the node can answer for VIPs, by VIPAdvertisement. From these, all agents
	// choose the same node for each VIP.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=advertisement
	L2 []L2Reach `json:"l2,omitempty"`
}

// L2Reach is where a node can answer for the VIPs of a VIPAdvertisement.
type L2Reach struct {
	// Advertisement is the name of the VIPAdvertisement.
	//
	// +kubebuilder:validation:MaxLength=253
	Advertisement string `json:"advertisement"`
	// Networks hold the VIPs: the networks of the node's uplinks, or all addresses of a family where
	// the advertisement names the interfaces.
	//
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=43
	// +listType=set
	Networks []string `json:"networks"`
}

// LBNodeList is a list of LBNodes.
//
// +kubebuilder:object:root=true
type LBNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LBNode `json:"items"`
}
