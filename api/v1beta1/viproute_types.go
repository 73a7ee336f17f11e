// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VIPRoute sends ports of a Service's VIPs to the endpoints of other Services, by weight.
// It takes the place of the Service's own endpoints for those ports. A gateway's TCPRoutes and
// UDPRoutes become VIPRoutes, so that agents forward them without a proxy.
//
// Only the gateway's controller may write VIPRoutes. It alone checks whether a route may lead
// to a Service of another namespace; agents do as the object says.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,categories=millrace,shortName=vroute
// +kubebuilder:printcolumn:name="Service",type=string,JSONPath=`.spec.serviceName`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VIPRoute struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VIPRouteSpec `json:"spec"`
}

// VIPRouteSpec says where the ports of a Service lead. Where two VIPRoutes have the same port of a
// Service, the older one holds.
type VIPRouteSpec struct {
	// ServiceName is the LoadBalancer Service, in the same namespace, whose VIPs it is for. The
	// traffic policy, session affinity, source ranges and traffic distribution are those of
	// this Service.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ServiceName string `json:"serviceName"`

	// Ports are those of the Service that lead elsewhere. Other ports of it keep its endpoints.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=port
	// +listMapKey=protocol
	Ports []VIPRoutePort `json:"ports"`
}

// VIPRoutePort is a port of the Service, and where it leads.
type VIPRoutePort struct {
	// Port is the number of a port of the Service.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`

	// +optional
	// +kubebuilder:validation:Enum=TCP;UDP
	// +kubebuilder:default=TCP
	Protocol corev1.Protocol `json:"protocol,omitempty"`

	// Backends share the new connections by their weights. Without any, and where all weights
	// are zero, all of them are refused.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	Backends []VIPRouteBackend `json:"backends,omitempty"`
}

// VIPRouteBackend is a Service that gets a share of the connections.
//
// +kubebuilder:validation:XValidation:rule="(has(self.invalid) && self.invalid) || (has(self.name) && has(self.port))",message="name and port are needed unless the backend is invalid"
type VIPRouteBackend struct {
	// Namespace is that of the Service. Empty: that of the VIPRoute.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name,omitempty"`

	// Port is the number of a port of the Service.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// Weight is the share against the weights of the other backends. It is divided over the
	// Service's usable endpoints. With zero they get no new connections and keep those that
	// they have; a backend that is left out loses them.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight int32 `json:"weight"`

	// Invalid is true for a backend that must not or cannot be used. Its share is refused: a
	// TCP reset, or ICMP port unreachable. So is that of a Service without a usable endpoint.
	//
	// +optional
	Invalid bool `json:"invalid,omitempty"`
}

// MaxRouteWeight is the highest weight of a VIPRoute's backend.
const MaxRouteWeight = 1_000_000

// VIPRouteList is a list of VIPRoutes.
//
// +kubebuilder:object:root=true
type VIPRouteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VIPRoute `json:"items"`
}
