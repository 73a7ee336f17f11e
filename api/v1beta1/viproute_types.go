// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VIPRoute forwards ports of a Service's VIPs to the endpoints of other Services, by weight. For these
// ports it replaces the Service's own endpoints. The gateway converts TCPRoutes and UDPRoutes to VIPRoutes,
// so that agents forward them without a proxy.
//
// Only the gateway's controller may write VIPRoutes, because it checks whether a route may refer to a
// Service in another namespace; agents do not.
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

// VIPRouteSpec maps the ports of a Service to backends. If two VIPRoutes have the same port of a Service,
// the older one wins.
type VIPRouteSpec struct {
	// ServiceName specifies the LoadBalancer Service in the same namespace whose VIPs the route applies to.
	// The traffic policy, session affinity, source ranges and traffic distribution of this Service apply.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ServiceName string `json:"serviceName"`

	// Ports specifies the forwarded ports of the Service. Its other ports keep its own endpoints.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=port
	// +listMapKey=protocol
	Ports []VIPRoutePort `json:"ports"`
}

// VIPRoutePort is a port of the Service with its backends.
type VIPRoutePort struct {
	// Port specifies the number of a port of the Service.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`

	// +optional
	// +kubebuilder:validation:Enum=TCP;UDP
	// +kubebuilder:default=TCP
	Protocol corev1.Protocol `json:"protocol,omitempty"`

	// Backends specifies the Services that share the new connections by their weights. Without backends, or
	// if all weights are zero, all connections are rejected.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	Backends []VIPRouteBackend `json:"backends,omitempty"`
}

// VIPRouteBackend is a Service that gets a share of the connections.
//
// +kubebuilder:validation:XValidation:rule="(has(self.invalid) && self.invalid) || (has(self.name) && has(self.port))",message="name and port are required unless invalid is set"
type VIPRouteBackend struct {
	// Namespace specifies the namespace of the Service. Defaults to the namespace of the VIPRoute.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name,omitempty"`

	// Port specifies the number of a port of the Service.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// Weight specifies the share relative to the weights of the other backends, divided among the Service's
	// usable endpoints. With zero they get no new connections and keep existing ones; removing a backend
	// drops them.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000
	Weight int32 `json:"weight"`

	// Invalid is true for a backend that must not or cannot be used. Its share of connections is rejected:
	// by a TCP reset, or ICMP port unreachable. The same applies to a Service without a usable endpoint.
	//
	// +optional
	Invalid bool `json:"invalid,omitempty"`
}

// MaxRouteWeight is the maximum weight of a VIPRoute's backend.
const MaxRouteWeight = 1_000_000

// VIPRouteList is a list of VIPRoutes.
//
// +kubebuilder:object:root=true
type VIPRouteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VIPRoute `json:"items"`
}
