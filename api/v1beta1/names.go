// SPDX-License-Identifier: Apache-2.0

package v1beta1

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

// AnnotationClass is, on a Service that has an address, the load balancer class that the address
// was given for. The operator writes it. Another class in the Service's spec tells that the Service
// has moved to another load balancer; the same one tells an operator of another class that the
// address is none of its business.
const AnnotationClass = "millrace.io/load-balancer-class"

// LabelServiceDefaults: on a namespace, "enabled" has our defaults filled in where its Services
// leave something out; on a Service, "disabled" switches that off. See
// docs/install.md#defaults-for-services.
const (
	LabelServiceDefaults    = "millrace.io/service-defaults"
	ServiceDefaultsEnabled  = "enabled"
	ServiceDefaultsDisabled = "disabled"
)

// AnnotationDrain is, on a Node, a wish: while it is there, the node hands its routes over to other
// nodes; its value does not matter. `millrace drain` writes it.
const AnnotationDrain = "millrace.io/drain"

// LabelAnnouncer says, on a Node, who has the routers' sessions, while a cluster moves from
// another load balancer and node by node. `millrace migrate nodes` writes it. A Node without it is
// the other's.
const (
	LabelAnnouncer = "millrace.io/announcer"
	// AnnouncerNone: the former has left, or leaves, and the next waits for that.
	AnnouncerNone = "none"
	// AnnouncerMillrace: the LBPeers that select it have the sessions.
	AnnouncerMillrace = "millrace"
)

// AnnotationConfirmRemoval confirms: an LBPeer, VIPAdvertisement, VIP or VIPRoute may be removed at
// once, be it the last one of its kind; a VIPPool may be deleted or made smaller although VIPs are
// from it; a Service gives its address up at once. Its value does not matter. See
// docs/failures.md#what-is-removed-by-mistake.
const AnnotationConfirmRemoval = "millrace.io/confirm-removal"

// Finalizer is a finalizer on every Service that holds an address, so that the address is given
// back in order before the Service is gone.
const Finalizer = "millrace.io/address"

// SharedFinalizer is a finalizer beside millrace.io/address: that of all load balancers
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
	// answer; else it is absent. Anybody who forges such packets makes it False, so Ready depends
	// on it only where more nodes do not answer than are left.
	ConditionNodesReached = "NodesReached"
	// ConditionReachedThroughRouters of an LBPeer with canaries: True while probes through its
	// routers reach every node that announces the canaries to them. Unknown while no node does, or
	// where probes cannot prove it.
	ConditionReachedThroughRouters = "ReachedThroughRouters"
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
	// ConditionOverlapsEndpoints of a VIPPool: True while the pool is held because endpoints have addresses that it
	// adds; else it is absent.
	ConditionOverlapsEndpoints = "OverlapsEndpoints"
)

// PortErrorPrefix is in front of the reason in
// Service.status.loadBalancer.ingress[].ports[].error: errors of one provider have
// the form "foo.example.com/CamelCase" there.
const PortErrorPrefix = "millrace.io/"

// Reasons of Ready, Conflicting and Unique: the conditions of VIPPools, LBPeers, VIPAdvertisements
// and VIPs.
const (
	// ReasonValid: nothing is to do. A message tells what may surprise: an address that the pool no
	// longer gives out, or a reference to an object that does not exist.
	ReasonValid = "Valid"
	// ReasonInvalid: the object is not used. Correct the field that the message names. VIPs that a
	// pool gave out before stay. Of a Service: an annotation or a source range cannot be read, or
	// asks for a family that the Service lacks.
	ReasonInvalid = "Invalid"
	// ReasonOverlap: an older pool has some of the addresses and keeps them; this one gives out the
	// rest. Ready is False only where none is left. Change one of the pools, or put the addresses
	// under reserved.
	ReasonOverlap = "Overlap"
	// ReasonOccupied: nodes, their pods, routers or the Service network have some of the addresses,
	// and nodes let their packets through. Of a pool: they are never given out; put them under
	// reserved if that is meant so. Of a VIP and its Service: no node serves the address; give
	// another one.
	ReasonOccupied = "Occupied"
	// ReasonOverlapsEndpoints: endpoints have addresses that a new or changed pool adds, so the pool
	// adds none of its new addresses. VIPs and endpoints are served as before. Remove the range of the
	// pods from spec.addresses, or list addresses of hosts in spec.reserved.
	ReasonOverlapsEndpoints = "OverlapsEndpoints"
	// ReasonNoConflict: no other VIPAdvertisement gives the same VIPs other attributes.
	ReasonNoConflict = "NoConflict"
	// ReasonOverruled: another VIPAdvertisement, before this one by name, gives the same VIPs other
	// attributes, and is obeyed: see docs/bgp.md#advertisements.
	ReasonOverruled = "Overruled"
	// ReasonDuplicateInUse: another host took the address of a VIP that was announced already, and
	// goes on to be. Move the host away. Services have it, too.
	ReasonDuplicateInUse = "DuplicateInUse"
)

// Reasons of AddressAssigned: the condition of a Service, and its events.
const (
	// ReasonAssigned: nothing is to do.
	ReasonAssigned = "AddressAssigned"
	// ReasonExhausted: no address is free in the pools that match. Add addresses or a pool: the
	// Service then gets one.
	ReasonExhausted = "PoolExhausted"
	// ReasonNoPool: no pool has the family and selects the Service and its namespace. See the
	// pools' selectors, autoAssign, and whether they are Ready.
	ReasonNoPool = "NoMatchingPool"
	// ReasonAddressInUse: the message names the Service that has the address, and does not share
	// it: its sharing key or namespace is another, 64 Services share it already, or it is reserved
	// for that Service. Ask for another address.
	ReasonAddressInUse = "AddressInUse"
	// ReasonAddressForbidden: the address asked for is in no pool that the Service may use.
	ReasonAddressForbidden = "AddressNotInPool"
	// ReasonQuotaExceeded: the namespace has as many addresses of the pool as it may; the message
	// has the numbers. Delete Services that need none, share one, or raise the quota:
	// docs/addresses.md#how-many-addresses-a-namespace-gets.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonQuotaNearlyUsed: an event: with this Service the namespace has 80 % of its quota.
	ReasonQuotaNearlyUsed = "QuotaNearlyUsed"
	// ReasonAnotherAddress: an event: the Service got another address than others with its sharing
	// key, as one of them has its port or there is no room. The event names both addresses.
	ReasonAnotherAddress = "AnotherAddress"
	// ReasonForeignAddress: the Service's status has an address or host name of another load
	// balancer. It stays, and Millrace gives no other one. To keep that address with Millrace, put
	// it into a VIPPool that selects the Service. To get another one, stop the other load balancer
	// for the Service and remove its entry from the status. Under Served: stop it, then remove its
	// entry.
	ReasonForeignAddress = "ForeignAddress"
	// ReasonNothingToAdopt: with --adopt, the other load balancer has to give an address first: see
	// docs/migrate.md.
	ReasonNothingToAdopt = "NothingToAdopt"
	// ReasonWriteFailed: the API server refused a write, as the message says. It is tried again.
	ReasonWriteFailed = "WriteFailed"
	// ReasonReleased: an event: an address was given back.
	ReasonReleased = "AddressReleased"
)

// Reasons of Served: the condition of a Service with an address, and its events.
const (
	// ReasonServed: nothing is to do. A message names what is ignored.
	ReasonServed = "Served"
	// ReasonStatusContested: another program overwrote the status three times in 10 s, so it is
	// written every 30 s only. Find it by the managed fields (kubectl get service NAME -o yaml
	// --show-managed-fields), and stop it for this Service. Addresses that it writes stay.
	ReasonStatusContested = "StatusContested"
	// ReasonNotAnnounced: VIPAdvertisements select the address, but none of their nodes has an
	// established BGP session. See `millrace bgp peers`.
	ReasonNotAnnounced = "NotAnnounced"
	// ReasonPortConflict: another Service on the same address has the port; the message names both.
	// Change the port, or ask for another address. Of a VIP: two manual claims list the port, and
	// the first one has it.
	ReasonPortConflict = "PortConflict"
	// ReasonUnsupported: a port is of a protocol that is not served, or is an SCTP port with
	// another targetPort.
	ReasonUnsupported = "Unsupported"
)

// Reasons of an LBNodeReport: its conditions, and events about nodes.
const (
	// ReasonReady: Programmed, Attached and BGPEstablished are true.
	ReasonReady = "Ready"
	// ReasonProgrammed: the maps hold all of it. A message tells what objects ask for and do not
	// get.
	ReasonProgrammed = "Programmed"
	// ReasonMapFull: a node has no room for all of it; what fits is served. Raise the agents' flag
	// that the message names. Services have it, too, with the node's name.
	ReasonMapFull = "MapFull"
	// ReasonProgramFailed: the kernel refused a write, as the message says. What was there stays,
	// what does not depend on that write is done, and it is tried again after 30 s at most.
	ReasonProgramFailed = "ProgramFailed"
	// ReasonNoNodeID: the node has no LBNode yet. Is the operator running? As an event of a Node:
	// all numbers of nodes are taken.
	ReasonNoNodeID = "NoNodeID"
	// ReasonAttached: every uplink that must have the programs has them. A message names others,
	// which may do without. A tun or WireGuard device never has them, as its packets have no
	// Ethernet header.
	ReasonAttached = "Attached"
	// ReasonAttachFailed: an uplink that must have the programs lacks them; the message says which
	// and why. It must if it has an address of the node, or leads to an LBPeer, which gets no route
	// meanwhile. If there is another XDP program, remove it.
	ReasonAttachFailed = "AttachFailed"
	// ReasonNoUplink: no interface carries a default route, the node's addresses or a network with
	// a BGP peer. Name the interfaces with --uplinks.
	ReasonNoUplink = "NoUplink"
	// ReasonEstablished: every session is established.
	ReasonEstablished = "Established"
	// ReasonNotEstablished: a session is not established; the message has the first peers. See
	// docs/bgp.md#a-session-does-not-come-up.
	ReasonNotEstablished = "NotEstablished"
	// ReasonNoPeer: no LBPeer selects the node. The condition is true. Of a VIP: no peer of its
	// advertisements is for the node and has the VIP's family.
	ReasonNoPeer = "NoPeer"
	// ReasonCompatible: nothing on the host is known to break traffic.
	ReasonCompatible = "Compatible"
	// ReasonHostSettings: something on the host breaks traffic. Change what the message names.
	// Ready does not depend on it.
	ReasonHostSettings = "HostSettings"
	// ReasonOtherUplink: packets of nodes came in by an uplink on which those nodes are not
	// reached, and were dropped (tunnel_uplink). They are forged, or routing is asymmetric: see
	// docs/security.md#asymmetric-routing-between-nodes. It stays for ten minutes after the last
	// one.
	ReasonOtherUplink = "OtherUplink"
	// ReasonNodesDown: nodes in the message do not answer: see docs/failures.md#when-a-node-dies.
	ReasonNodesDown = "NodesDown"
	// ReasonCutOff: half of the nodes, or more, do not answer. Look at this node's network.
	ReasonCutOff = "CutOff"
	// ReasonNodesReached: probes through the routers reach all nodes that announce the canary.
	ReasonNodesReached = "NodesReached"
	// ReasonNothingProved: no node announces the canary yet, or none has probed for long enough.
	ReasonNothingProved = "NothingProved"
	// ReasonRouteMissing: the router sends nothing to nodes in the message. It filters their
	// routes, or uses fewer paths than there are nodes.
	ReasonRouteMissing = "RouteMissing"
	// ReasonHashWithoutPorts: the router sends all probes of a node to one other. Its hash leaves
	// ports out, so probes cannot prove whether it uses the routes of nodes that none came to.
	ReasonHashWithoutPorts = "HashWithoutPorts"
	// ReasonNothingAnswered: no probe through the router is answered. It filters the canary, or
	// does not reach the nodes.
	ReasonNothingAnswered = "NothingAnswered"
	// ReasonPacketsLost: what the router sends to nodes in the message is lost. Their programs are
	// not attached, or the way to them is cut.
	ReasonPacketsLost = "PacketsLost"
	// ReasonLongPacketsLost: nodes in the message answer short probes, and none as long as the MTU.
	ReasonLongPacketsLost = "LongPacketsLost"
	// ReasonPanicThreshold: most endpoints of most Services turned unready at once, and are served
	// all the same: see docs/failures.md#all-pods-unready.
	ReasonPanicThreshold = "PanicThreshold"
	// ReasonRemovalGuarded: too many objects were removed at once, and count as present. Apply them
	// again, or confirm: see docs/failures.md#what-is-removed-by-mistake.
	ReasonRemovalGuarded = "RemovalGuarded"
	// ReasonNodeNotReady: the Node is not ready, and Ready is Unknown. The condition goes when the
	// Node is ready again.
	ReasonNodeNotReady = "NodeNotReady"
	// ReasonSeedDiffers: the node hashes by another seed than the Secret has. Put the previous seed
	// back, or restart all agents: see docs/operate.md#the-seed-of-the-flow-hash.
	ReasonSeedDiffers = "SeedDiffers"
	// ReasonKeyInUse: nothing is to do. As an event of the Secret: all nodes send with the new key.
	ReasonKeyInUse = "KeyInUse"
	// ReasonKeyAbsent: the Secret of the tunnel's key does not exist. Is the operator running? It
	// makes it.
	ReasonKeyAbsent = "KeyAbsent"
	// ReasonKeyInvalid: the Secret cannot be read. Delete it, or apply the roles, as the message
	// says.
	ReasonKeyInvalid = "KeyInvalid"
	// ReasonKeyFailed: the kernel refused to take the key. It is tried again.
	ReasonKeyFailed = "KeyFailed"
	// ReasonNotConfirmed: a change of the key waits for the node. See why its agent does not run or
	// report. As an event of the Secret: the change goes on without it.
	ReasonNotConfirmed = "NotConfirmed"
	// ReasonKeyMade: an event of the Secret: there is a new key.
	ReasonKeyMade = "KeyMade"
)

// Reasons not to announce a VIP: why a node does not, in the order in which they are looked for.
// They are in LBNodeReports and in the answers of agents.
const (
	// ReasonNoService: no Service has the VIP; it is reserved.
	ReasonNoService = "NoService"
	// ReasonNotSelected: no advertisement that selects the node selects the VIP.
	ReasonNotSelected = "NotSelected"
	// ReasonDuplicateAddress: a host on a link of the node has the VIP's address. It was there
	// before the VIP was used; one that comes later keeps nothing from being announced. Conditions
	// of VIPs and Services have it, too.
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
