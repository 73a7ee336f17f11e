// SPDX-License-Identifier: Apache-2.0

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BFD is a BFD session (RFC 5880) beside a BGP session. It finds within a fraction of a second
// that the way between node and router is cut; the BGP session is then taken down at once. It
// is asynchronous, without echo and authentication. The router needs a BFD session, too.
type BFD struct {
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// TransmitInterval is the shortest interval at which the node sends packets. The
	// router may ask for fewer.
	//
	// +optional
	// +kubebuilder:default="100ms"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms') && duration(self) <= duration('60s')",message="must be between 10ms and 60s"
	TransmitInterval *metav1.Duration `json:"transmitInterval,omitempty"`

	// ReceiveInterval is the shortest interval at which the router may send packets.
	//
	// +optional
	// +kubebuilder:default="100ms"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms') && duration(self) <= duration('60s')",message="must be between 10ms and 60s"
	ReceiveInterval *metav1.Duration `json:"receiveInterval,omitempty"`

	// DetectMultiplier is how many packets of the node the router misses before it takes
	// the node for lost. How many of its own the node may miss, the router says.
	//
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	DetectMultiplier int32 `json:"detectMultiplier,omitempty"`

	// Multihop is for a router that is not directly connected (RFC 5883): UDP port 4784 in
	// place of 3784. Default: true where multihopTTL is more than 1.
	//
	// +optional
	Multihop *bool `json:"multihop,omitempty"`

	// MinimumTTL is that of the packets of a multihop router; those with less are
	// discarded. Packets of a directly connected router must have 255 (RFC 5881, section 5).
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	MinimumTTL *int32 `json:"minimumTTL,omitempty"`
}

// BFDState is the state of a BFD session (RFC 5880, section 4.1). Unknown is that of one whose
// process on the node does not answer.
//
// +kubebuilder:validation:Enum=AdminDown;Down;Init;Up;Unknown
type BFDState string

// BFDUnknown is the state of a session that nothing is known of.
const BFDUnknown BFDState = "Unknown"

// BFDStatus is the state of the BFD session with a router.
type BFDStatus struct {
	State BFDState `json:"state"`
	// Since is when the session came up or was lost.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// DetectionTime is how long the node waits for a packet of the router, as negotiated.
	//
	// +optional
	DetectionTime *metav1.Duration `json:"detectionTime,omitempty"`
	// Message says why the session is not up, or why its packets may be late.
	//
	// +optional
	Message string `json:"message,omitempty"`
}
