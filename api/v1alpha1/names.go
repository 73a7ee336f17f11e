// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Class is the value of Service.spec.loadBalancerClass that Millrace serves, unless the operator is
// given another one.
const Class = "millrace.io/lb"

// Annotations on a Service.
const (
	// AnnotationPool names the VIPPool from which the Service wants its addresses.
	AnnotationPool = "millrace.io/pool"
	// AnnotationAddresses lists, separated by commas, the addresses that the
	// Service wants: at most eight of an IP family.
	AnnotationAddresses = "millrace.io/addresses"
	// AnnotationSharingKey is the same on Services that want one address
	// together, each with other ports; at most 253 bytes.
	AnnotationSharingKey = "millrace.io/sharing-key"
)

// AnnotationClass on a Service that has an address is the load balancer class that the address was
// given for. The operator writes it. Another class in the Service's spec tells that the Service
// has moved to another load balancer; the same one tells an operator of another class that the
// address is none of its business.
const AnnotationClass = "millrace.io/load-balancer-class"

// LabelServiceDefaults on a namespace has our defaults filled in where its Services leave something
// out; on a Service it can switch that off.
const (
	LabelServiceDefaults    = "millrace.io/service-defaults"
	ServiceDefaultsEnabled  = "enabled"
	ServiceDefaultsDisabled = "disabled"
)

// AnnotationDrain on a Node makes it hand over its routes to other nodes, as long as it is
// there; its value does not matter. `millrace drain` writes it.
const AnnotationDrain = "millrace.io/drain"

// LabelAnnouncer on a Node says who has the routers' sessions, while a cluster moves from another load
// balancer and node by node. `millrace migrate nodes` writes it. A Node without it is the other's.
const (
	LabelAnnouncer = "millrace.io/announcer"
	// AnnouncerNone: the former has left, or leaves, and the next waits for that.
	AnnouncerNone = "none"
	// AnnouncerMillrace: the LBPeers that select it have the sessions.
	AnnouncerMillrace = "millrace"
)

// AnnotationConfirmRemoval on an LBPeer, VIPAdvertisement, VIP or VIPRoute says that it may be
// removed at once, be it the last one of its kind; its value does not matter. On a VIPPool it says
// that the pool may be deleted or made smaller although VIPs are from it.
const AnnotationConfirmRemoval = "millrace.io/confirm-removal"

// Finalizer is on every Service that holds an address, so that the address is given back in
// order before the Service is gone.
const Finalizer = "millrace.io/address"

// SharedFinalizer stands beside it. It is that of all load balancers
// (LoadBalancerCleanupFinalizer in k8s.io/cloud-provider/service/helpers). A
// cloud-controller-manager removes it from any Service that is deleted, whatever its class.
const SharedFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// Condition types.
const (
	// ConditionReady of a VIPPool, LBPeer or VIPAdvertisement: true when the
	// object is valid and in use. Of an LBNodeReport: true when its other
	// conditions of the agent are.
	ConditionReady = "Ready"
	// ConditionConflicting of a VIPAdvertisement: true while it selects VIPs, for a peer and a
	// node, that one before it by name selects with other attributes. Those are announced with
	// the other's.
	ConditionConflicting = "Conflicting"
	// ConditionUnique of a VIP: False while nodes find a host that has its address, with the reason
	// DuplicateAddress where the VIP waits for that, and DuplicateInUse where it is announced all
	// the same; else it is absent.
	ConditionUnique = "Unique"
	// ConditionAddressAssigned of a Service: true when every IP family that
	// the Service requires has its VIP.
	ConditionAddressAssigned = "millrace.io/AddressAssigned"
	// ConditionServed of a Service that has an address: true when everything
	// that the Service asks for is served.
	ConditionServed = "millrace.io/Served"
	// ConditionProgrammed of an LBNodeReport: true when the node's maps hold
	// everything that was asked of them.
	ConditionProgrammed = "Programmed"
	// ConditionAttached of an LBNodeReport: true when every uplink has the programs.
	ConditionAttached = "Attached"
	// ConditionBGPEstablished of an LBNodeReport: true when every session that is
	// meant for the node is established.
	ConditionBGPEstablished = "BGPEstablished"
	// ConditionHostCompatible of an LBNodeReport: false when something on the host, outside of
	// Millrace, is known to break traffic. Ready does not depend on it.
	ConditionHostCompatible = "HostCompatible"
	// ConditionNodesReached of an LBNodeReport: False while packets of other nodes come in by an
	// uplink on which those nodes are not reached, and are dropped, or while other nodes do not
	// answer; else it is absent. Anybody who forges such packets makes it False, so Ready depends on
	// it only where more nodes do not answer than are left.
	ConditionNodesReached = "NodesReached"
	// ConditionObjectsPresent of an LBNodeReport: False while objects count as present that were
	// removed, too many at once; else it is absent. Ready does not depend on it.
	ConditionObjectsPresent = "ObjectsPresent"
	// ConditionReadinessTrusted of an LBNodeReport: False while endpoints are served that are not
	// ready, because most endpoints of most Services turned unready at once; else it is absent.
	// Ready does not depend on it.
	ConditionReadinessTrusted = "ReadinessTrusted"
	// ConditionTunnelKey of an LBNodeReport: True while the node has the keys that the Secret of
	// the tunnel says. Ready does not depend on it: other fences stand.
	ConditionTunnelKey = "TunnelKey"
	// ConditionTunnelKeyCurrent of an LBNodeReport: False while a change of the tunnel's key waits
	// for the node, or was done without it; else it is absent. The operator writes it.
	ConditionTunnelKeyCurrent = "TunnelKeyCurrent"
	// ConditionFlowSeed of an LBNodeReport: False while the node hashes flows by another seed than
	// the Secret of the tunnel has; else it is absent. Ready does not depend on it: only flows that
	// move between such nodes are lost.
	ConditionFlowSeed = "FlowSeed"
	// ConditionNodeReady of an LBNodeReport: False or Unknown, as the condition
	// Ready of the Node is, while the Node is not ready; else it is absent. The
	// operator writes it.
	ConditionNodeReady = "NodeReady"
)

// PortErrorPrefix is in front of the reason in
// Service.status.loadBalancer.ingress[].ports[].error: errors of one provider have
// the form "foo.example.com/CamelCase" there.
const PortErrorPrefix = "millrace.io/"

// Reasons of conditions and events.
const (
	ReasonValid            = "Valid"
	ReasonInvalid          = "Invalid"
	ReasonOverlap          = "Overlap"
	ReasonOccupied         = "Occupied"
	ReasonAssigned         = "AddressAssigned"
	ReasonReleased         = "AddressReleased"
	ReasonExhausted        = "PoolExhausted"
	ReasonNoPool           = "NoMatchingPool"
	ReasonAddressInUse     = "AddressInUse"
	ReasonAddressForbidden = "AddressNotInPool"
	ReasonQuotaExceeded    = "QuotaExceeded"
	ReasonQuotaNearlyUsed  = "QuotaNearlyUsed"
	ReasonAnotherAddress   = "AnotherAddress"
	ReasonForeignAddress   = "ForeignAddress"
	ReasonNothingToAdopt   = "NothingToAdopt"
	ReasonStatusContested  = "StatusContested"
	ReasonWriteFailed      = "WriteFailed"
	ReasonNotAnnounced     = "NotAnnounced"
	ReasonPortConflict     = "PortConflict"
	ReasonServed           = "Served"
	ReasonProgrammed       = "Programmed"
	ReasonMapFull          = "MapFull"
	ReasonDuplicateInUse   = "DuplicateInUse"
	ReasonProgramFailed    = "ProgramFailed"
	ReasonAttached         = "Attached"
	ReasonAttachFailed     = "AttachFailed"
	ReasonNoUplink         = "NoUplink"
	ReasonCompatible       = "Compatible"
	ReasonHostSettings     = "HostSettings"
	ReasonNoNodeID         = "NoNodeID"
	ReasonEstablished      = "Established"
	ReasonNotEstablished   = "NotEstablished"
	ReasonNoPeer           = "NoPeer"
	ReasonUnsupported      = "Unsupported"
	ReasonOtherUplink      = "OtherUplink"
	ReasonNodesDown        = "NodesDown"
	ReasonCutOff           = "CutOff"
	ReasonPanicThreshold   = "PanicThreshold"
	ReasonRemovalGuarded   = "RemovalGuarded"
	ReasonNodeNotReady     = "NodeNotReady"
	ReasonSeedDiffers      = "SeedDiffers"
	ReasonKeyInUse         = "KeyInUse"
	ReasonKeyAbsent        = "KeyAbsent"
	ReasonKeyInvalid       = "KeyInvalid"
	ReasonKeyFailed        = "KeyFailed"
	ReasonNotConfirmed     = "NotConfirmed"
	ReasonKeyMade          = "KeyMade"
	ReasonReady            = "Ready"
	ReasonNoConflict       = "NoConflict"
	ReasonOverruled        = "Overruled"
)

// Reasons for which a node does not announce a VIP, in the order in which they are looked
// for. They are in LBNodeReports and in the answers of agents.
const (
	// ReasonNoService: no Service has the VIP; it is reserved.
	ReasonNoService = "NoService"
	// ReasonNotSelected: no advertisement that selects the node selects the VIP.
	ReasonNotSelected = "NotSelected"
	// ReasonDuplicateAddress: a host on a link of the node has the VIP's address. It was there before
	// the VIP was used; one that comes later keeps nothing from being announced. Conditions of VIPs
	// and Services have it, too.
	ReasonDuplicateAddress = "DuplicateAddress"
	// ReasonCheckingAddress: it is being asked whether a host has the address of a new VIP.
	ReasonCheckingAddress = "CheckingAddress"
	// ReasonNoFrontend: no Service on the VIP has a port that can be served.
	ReasonNoFrontend = "NoFrontend"
	// ReasonNotAttached: the programs are not on the node's uplinks.
	ReasonNotAttached = "NotAttached"
	// ReasonNotProgrammed: the maps hold no frontend of the VIP that can serve, or, before
	// it is announced for the first time, not all that they will.
	ReasonNotProgrammed = "NotProgrammed"
	// ReasonNoEndpoints: no Service on the VIP has an endpoint.
	ReasonNoEndpoints = "NoEndpoints"
	// ReasonNoLocalEndpoint: externalTrafficPolicy is Local and no endpoint on the node
	// is ready.
	ReasonNoLocalEndpoint = "NoLocalEndpoint"
	// ReasonAnsweredElsewhere: another node answers for the VIP on its links.
	ReasonAnsweredElsewhere = "AnsweredElsewhere"
	// ReasonNoLink: no node that could answer for the VIP has an uplink in its network.
	ReasonNoLink = "NoLink"
	// ReasonNoNextHop: the node has no address of the VIP's family.
	ReasonNoNextHop = "NoNextHop"
	// ReasonNodeDraining: the node hands its routes over to others (LBNode.spec.departure).
	ReasonNodeDraining = "NodeDraining"
	// ReasonReleasing: all Services that have the VIP give it up. Events of Services have it, too.
	ReasonReleasing = "Releasing"
)
