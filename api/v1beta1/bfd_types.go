// SPDX-License-Identifier: Apache-2.0

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BFD configures a BFD session (RFC 5880) for each BGP session. It detects a broken path between node and
// router within a fraction of a second and then closes the BGP session. The session is asynchronous,
// without echo and authentication. BFD must be configured on the router, too.
type BFD struct {
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// TransmitInterval specifies the minimum interval between packets of the node. The router may request a
	// longer one.
	//
	// +optional
	// +kubebuilder:default="100ms"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms') && duration(self) <= duration('60s')",message="must be between 10ms and 60s"
	TransmitInterval *metav1.Duration `json:"transmitInterval,omitempty"`

	// ReceiveInterval specifies the minimum interval between packets of the router.
	//
	// +optional
	// +kubebuilder:default="100ms"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms') && duration(self) <= duration('60s')",message="must be between 10ms and 60s"
	ReceiveInterval *metav1.Duration `json:"receiveInterval,omitempty"`

	// DetectMultiplier specifies the number of consecutive packets of the node that the router may miss
	// before it closes the session. The router's own multiplier applies to its packets.
	//
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	DetectMultiplier int32 `json:"detectMultiplier,omitempty"`

	// Multihop is true for a router that is not directly connected (RFC 5883): UDP port 4784 instead of
	// 3784. Defaults to true if multihopTTL is greater than 1.
	//
	// +optional
	Multihop *bool `json:"multihop,omitempty"`

	// MinimumTTL specifies the minimum TTL of packets from a multihop router; others are discarded. Packets
	// of a directly connected router must have TTL 255 (RFC 5881, section 5).
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	MinimumTTL *int32 `json:"minimumTTL,omitempty"`
}

// BFDState represents the state of a BFD session (RFC 5880, section 4.1). Unknown means that the node's BFD
// process does not answer.
//
// +kubebuilder:validation:Enum=AdminDown;Down;Init;Up;Unknown
type BFDState string

// BFDUnknown is the state of a session while the BFD process does not answer.
const BFDUnknown BFDState = "Unknown"

// BFDStatus represents the state of the BFD session with a router.
type BFDStatus struct {
	State BFDState `json:"state"`
	// Since is the time at which the session last came up or went down.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// DetectionTime is the negotiated time without packets of the router after which the session goes down.
	//
	// +optional
	DetectionTime *metav1.Duration `json:"detectionTime,omitempty"`
	// Message is the reason why the session is not up, or why its packets may be delayed.
	//
	// +optional
	Message string `json:"message,omitempty"`
}
