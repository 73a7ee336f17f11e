// SPDX-License-Identifier: Apache-2.0

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LBNode represents the identity of a node as needed by the other nodes. It has the name of the Node. All
// agents watch all LBNodes, so it is small and rarely written. The state that the node's agent observes is
// in its LBNodeReport.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=millrace,shortName=lbn
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="ID",type=integer,JSONPath=`.spec.id`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="Zone",type=string,JSONPath=`.spec.zone`
// +kubebuilder:printcolumn:name="Drain",type=string,JSONPath=`.spec.drainReason`
// +kubebuilder:printcolumn:name="Boot",type=string,JSONPath=`.status.bootID`,priority=1
// +kubebuilder:printcolumn:name="Serving",type=string,JSONPath=`.status.servingBootID`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type LBNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   LBNodeSpec   `json:"spec"`
	Status LBNodeStatus `json:"status,omitempty"`
}

// LBNodeSpec is written by the operator.
type LBNodeSpec struct {
	// ID specifies the node's number in encapsulated packets and forwarding tables; it never changes.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16383
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the ID of a node is immutable"
	ID int32 `json:"id"`

	// Addresses specifies the node's internal addresses, at most one per family (Node.status.addresses,
	// type InternalIP). Encapsulated packets are sent to and accepted from these addresses only.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`

	// PodCIDRs specifies the networks of the node's pods, at most one per family (Node.spec.podCIDRs). An
	// endpoint without a nodeName (EndpointSlice, discovery.k8s.io/v1) with an address in these networks is
	// assigned to the node.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +listType=atomic
	PodCIDRs []string `json:"podCIDRs,omitempty"`

	// Zone specifies the node's zone (label topology.kubernetes.io/zone of the Node), or empty. If a
	// Service requests it, packets that the node receives from routers are forwarded to endpoints with
	// hints for this zone.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Zone string `json:"zone,omitempty"`

	// DrainReason specifies why the node's routes are withdrawn, so that other nodes receive its packets.
	// Empty: the node announces its routes.
	//
	// +optional
	DrainReason DrainReason `json:"drainReason,omitempty"`
}

// DrainReason is the reason why a node's routes move to other nodes before the node goes down.
//
// +kubebuilder:validation:Enum=Cordoned;Excluded;Drained;ShuttingDown;OutOfService
type DrainReason string

// Reasons of a drain: LBNode.spec.drainReason. See docs/operate.md#take-a-node-out.
const (
	// DrainReasonCordoned: Node.spec.unschedulable, set by kubectl cordon and drain.
	DrainReasonCordoned DrainReason = "Cordoned"
	// DrainReasonExcluded: label node.kubernetes.io/exclude-from-external-load-balancers.
	DrainReasonExcluded DrainReason = "Excluded"
	// DrainReasonDrained: annotation millrace.io/drain, set by `millrace drain`.
	DrainReasonDrained DrainReason = "Drained"
	// DrainReasonShuttingDown: kubelet's graceful node shutdown.
	DrainReasonShuttingDown DrainReason = "ShuttingDown"
	// DrainReasonOutOfService: taint node.kubernetes.io/out-of-service, or
	// node.cloudprovider.kubernetes.io/shutdown.
	DrainReasonOutOfService DrainReason = "OutOfService"
)

// LBNodeStatus is written by the node's agent, at most twice in each boot, and when the networks in l2
// change.
type LBNodeStatus struct {
	// BootID is the current boot of the node, which its agent reads from the kernel at start
	// (/proc/sys/kernel/random/boot_id).
	//
	// +optional
	// +kubebuilder:validation:MaxLength=128
	BootID string `json:"bootID,omitempty"`

	// ServingBootID is the last boot during which the agent attached its programs and wrote its forwarding
	// tables. Failed writes of single frontends or nodes do not count. While it differs from bootID, or
	// both are empty, the node has booted and its agent is not ready yet: other nodes send it no packets.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ServingBootID string `json:"servingBootID,omitempty"`

	// L2 lists the networks where the node can answer for VIPs, by VIPAdvertisement. All agents select the
	// node that answers for a VIP from these lists.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=advertisement
	L2 []L2Reach `json:"l2,omitempty"`
}

// L2Reach lists the networks where a node can answer for the VIPs of a VIPAdvertisement.
type L2Reach struct {
	// Advertisement is the name of the VIPAdvertisement.
	//
	// +kubebuilder:validation:MaxLength=253
	Advertisement string `json:"advertisement"`
	// Networks are the networks of the node's uplinks, or all addresses of a family if the advertisement
	// names interfaces.
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
