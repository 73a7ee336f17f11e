// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Class is the value of Service.spec.loadBalancerClass that Millrace serves.
const Class = "millrace.io/lb"

// Annotations on a Service.
const (
	// AnnotationPool names the IPPool from which the Service wants its addresses.
	AnnotationPool = "millrace.io/pool"
	// AnnotationAddresses lists, separated by commas, the addresses that the
	// Service wants: at most one per IP family.
	AnnotationAddresses = "millrace.io/addresses"
	// AnnotationSharingKey is the same on Services that want one address
	// together, each with other ports; at most 253 bytes.
	AnnotationSharingKey = "millrace.io/sharing-key"
)

// Finalizer is on every Service that holds an address, so that the address is
// given back before the Service is gone.
const Finalizer = "millrace.io/address"

// Condition types.
const (
	// ConditionReady of an IPPool, BGPPeer, BGPAdvertisement or LBNode: true
	// when the object is valid and in use.
	ConditionReady = "Ready"
	// ConditionAddressAssigned of a Service: true when every IP family that
	// the Service requires has its VIP.
	ConditionAddressAssigned = "millrace.io/AddressAssigned"
	// ConditionProgrammed of an LBNode: true when the node's maps hold
	// everything that was asked of them.
	ConditionProgrammed = "Programmed"
	// ConditionAttached of an LBNode: true when every uplink has the programs.
	ConditionAttached = "Attached"
	// ConditionBGPEstablished of an LBNode: true when every session that is
	// meant for the node is established.
	ConditionBGPEstablished = "BGPEstablished"
)

// Reasons of conditions and events.
const (
	ReasonValid            = "Valid"
	ReasonInvalid          = "Invalid"
	ReasonOverlap          = "Overlap"
	ReasonAssigned         = "AddressAssigned"
	ReasonReleased         = "AddressReleased"
	ReasonExhausted        = "PoolExhausted"
	ReasonNoPool           = "NoMatchingPool"
	ReasonAddressInUse     = "AddressInUse"
	ReasonAddressForbidden = "AddressNotInPool"
	ReasonPortConflict     = "PortConflict"
	ReasonProgrammed       = "Programmed"
	ReasonMapFull          = "MapFull"
	ReasonProgramFailed    = "ProgramFailed"
	ReasonAttached         = "Attached"
	ReasonAttachFailed     = "AttachFailed"
	ReasonNoUplink         = "NoUplink"
	ReasonNoNodeID         = "NoNodeID"
	ReasonEstablished      = "Established"
	ReasonNotEstablished   = "NotEstablished"
	ReasonNoPeer           = "NoPeer"
	ReasonUnsupported      = "Unsupported"
)
