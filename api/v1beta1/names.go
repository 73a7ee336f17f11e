// SPDX-License-Identifier: Apache-2.0

package v1beta1

// Class is the default of Service.spec.loadBalancerClass that Millrace serves.
const Class = "millrace.io/lb"

// Annotations on a Service.
const (
	// AnnotationPool specifies the VIPPool from which the Service requests its addresses.
	AnnotationPool = "millrace.io/pool"
	// AnnotationAddresses specifies the addresses that the Service requests, separated by commas: at most
	// eight per IP family.
	AnnotationAddresses = "millrace.io/addresses"
	// AnnotationSharingKey has the same value on Services that share an address, each with other ports; at
	// most 253 bytes.
	AnnotationSharingKey = "millrace.io/sharing-key"
)

// AnnotationClass specifies the load balancer class that a Service's address was assigned for. The operator
// writes it. If the Service's spec has another class, the Service has moved to another load balancer. An
// operator of another class ignores addresses with this annotation.
const AnnotationClass = "millrace.io/load-balancer-class"

// LabelServiceDefaults enables the defaults for Services: "enabled" on a namespace fills in the fields that
// its Services omit; "disabled" on a Service excludes it. See docs/install.md#defaults-for-services.
const (
	LabelServiceDefaults    = "millrace.io/service-defaults"
	ServiceDefaultsEnabled  = "enabled"
	ServiceDefaultsDisabled = "disabled"
)

// AnnotationDrain on a Node withdraws the node's routes, so that traffic moves to other nodes. Its value is
// ignored. `millrace drain` sets it.
const AnnotationDrain = "millrace.io/drain"

// LabelAnnouncer on a Node specifies the load balancer that has the routers' sessions, during a migration
// from another load balancer node by node. `millrace migrate nodes` sets it. A Node without it belongs to
// the other load balancer.
const (
	LabelAnnouncer = "millrace.io/announcer"
	// AnnouncerNone: the previous load balancer is stopping or stopped, and the next one waits for that.
	AnnouncerNone = "none"
	// AnnouncerMillrace: the LBPeers that select this label have the sessions.
	AnnouncerMillrace = "millrace"
)

// AnnotationConfirmRemoval confirms a removal: an LBPeer, VIPAdvertisement, VIP or VIPRoute is removed at
// once, even if it is the last one of its kind; a VIPPool may be deleted or reduced although it has VIPs; a
// Service releases its address at once. Its value is ignored. See
// docs/failures.md#what-is-removed-by-mistake.
const AnnotationConfirmRemoval = "millrace.io/confirm-removal"

// Finalizer is a finalizer on every Service that has an address, so that the address is released before the
// Service is deleted.
const Finalizer = "millrace.io/address"

// SharedFinalizer is a second finalizer that all load balancers use (LoadBalancerCleanupFinalizer in
// k8s.io/cloud-provider/service/helpers). A cloud-controller-manager removes it from any deleted Service,
// regardless of its class.
const SharedFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// Condition types.
const (
	// ConditionReady of a VIPPool, LBPeer or VIPAdvertisement: True if the object is valid and in use. Of
	// an LBNodeReport: True if the agent's other conditions are.
	ConditionReady = "Ready"
	// ConditionConflicted of a VIPAdvertisement: True while another advertisement, earlier by name,
	// selects the same VIPs for the same peer and node with other attributes. Those VIPs have the
	// attributes of the other advertisement.
	ConditionConflicted = "Conflicted"
	// ConditionUnique of a VIP: False while nodes detect a host that has its address, with reason
	// DuplicateAddress if the VIP is not announced for this reason, and DuplicateInUse if it is announced
	// nevertheless; otherwise absent.
	ConditionUnique = "Unique"
	// ConditionAddressAssigned of a Service: True if every IP family that the Service requires has its VIP.
	ConditionAddressAssigned = "millrace.io/AddressAssigned"
	// ConditionServed of a Service that has an address: True if all of its spec is served.
	ConditionServed = "millrace.io/Served"
	// ConditionServiceAnnounced of a Service that has an address: True if every address has a node that can
	// announce it, which takes an established BGP session for its family or a link in its network. The
	// message lists the families. It does not depend on endpoints: nodes withdraw an address without any.
	ConditionServiceAnnounced = "millrace.io/Announced"
	// ConditionAnnounced of a VIP with a Service: True if a node can announce the address, as for Services. It
	// is absent while the VIP's status is empty, because no problem was found.
	ConditionAnnounced = "Announced"
	// ConditionProgrammed of an LBNodeReport: True if the node's maps are complete.
	ConditionProgrammed = "Programmed"
	// ConditionAttached of an LBNodeReport: True if every uplink has the programs.
	ConditionAttached = "Attached"
	// ConditionBGPEstablished of an LBNodeReport: True if every session of the node is established.
	ConditionBGPEstablished = "BGPEstablished"
	// ConditionHostCompatible of an LBNodeReport: False if the host has a configuration outside of Millrace
	// that is known to break traffic. Ready does not depend on it.
	ConditionHostCompatible = "HostCompatible"
	// ConditionNodesReachable of an LBNodeReport: False while other nodes do not answer, or while packets of
	// other nodes arrive on an uplink that does not lead to them, and are dropped; otherwise absent. Such
	// packets can be forged, so Ready depends on it only if at least half of the nodes stopped answering at
	// once.
	ConditionNodesReachable = "NodesReachable"
	// ConditionPathsVerified of an LBPeer with canaries: True while probes through its routers
	// reach every node that announces the canaries. Unknown while no node does, or if probes cannot verify
	// it.
	ConditionPathsVerified = "PathsVerified"
	// ConditionRemovalsApplied of an LBNodeReport: False while removed objects are retained because too many
	// were removed at once; otherwise absent. Ready does not depend on it.
	ConditionRemovalsApplied = "RemovalsApplied"
	// ConditionEndpointsHealthy of an LBNodeReport: False while endpoints that are not ready are served,
	// because most endpoints of most Services became unready at once; otherwise absent. Ready does not
	// depend on it.
	ConditionEndpointsHealthy = "EndpointsHealthy"
	// ConditionTunnelKeyProgrammed of an LBNodeReport: True while the node has the keys in the tunnel's Secret. Ready
	// does not depend on it, because packets between nodes have other checks, too.
	ConditionTunnelKeyProgrammed = "TunnelKeyProgrammed"
	// ConditionTunnelKeyCurrent of an LBNodeReport: False while a change of the tunnel's key waits for the
	// node, or was completed without it; otherwise absent. The operator writes it.
	ConditionTunnelKeyCurrent = "TunnelKeyCurrent"
	// ConditionFlowSeedConsistent of an LBNodeReport: False while the node hashes flows with another seed than that
	// in the tunnel's Secret; otherwise absent. Ready does not depend on it, because only flows that move
	// between such nodes are lost.
	ConditionFlowSeedConsistent = "FlowSeedConsistent"
	// ConditionNodeReady of an LBNodeReport: False or Unknown, the value of the Node's condition Ready,
	// while the Node is not ready; otherwise absent. The operator writes it.
	ConditionNodeReady = "NodeReady"
	// ConditionOverlapsEndpoints of a VIPPool: True while new addresses of the pool are not used because
	// endpoints have them; otherwise absent.
	ConditionOverlapsEndpoints = "OverlapsEndpoints"
)

// PortErrorPrefix precedes the reason in Service.status.loadBalancer.ingress[].ports[].error. Errors of a
// provider have the form "foo.example.com/CamelCase" in this field.
const PortErrorPrefix = "millrace.io/"

// Reasons of Ready, Conflicted and Unique: the conditions of VIPPools, LBPeers, VIPAdvertisements and
// VIPs.
const (
	// ReasonValid: no action is needed. The message can name an address that the pool no longer assigns, or
	// a reference to an object that does not exist.
	ReasonValid = "Valid"
	// ReasonInvalid: the object is not used. Correct the field in the message. Existing VIPs of a pool are
	// kept. Of a Service: an annotation or a source range is invalid, or requests a family that the Service
	// does not have.
	ReasonInvalid = "Invalid"
	// ReasonPoolOverlap: an older pool has some of the addresses and keeps them; the other addresses are
	// assigned. Ready is False only if no address is left. Change one of the pools, or add the addresses to
	// reserved.
	ReasonPoolOverlap = "PoolOverlap"
	// ReasonOccupied: some of the addresses belong to nodes, their pods, routers or the Service network,
	// and nodes do not treat them as VIPs. Of a pool: they are never assigned; add them to reserved to
	// confirm this. Of a VIP and its Service: no node serves the address; choose another one.
	ReasonOccupied = "Occupied"
	// ReasonOverlapsEndpoints: a new or changed pool contains addresses of endpoints, so its new addresses
	// are not used. Existing VIPs and endpoints are not affected. Remove the range of the pods from
	// spec.addresses, or add the addresses of hosts to spec.reserved.
	ReasonOverlapsEndpoints = "OverlapsEndpoints"
	// ReasonNoConflicts: no other VIPAdvertisement has different attributes for the same VIPs.
	ReasonNoConflicts = "NoConflicts"
	// ReasonAttributeConflict: another VIPAdvertisement, earlier by name, has different attributes for the same
	// VIPs and takes precedence: see docs/bgp.md#advertisements.
	ReasonAttributeConflict = "AttributeConflict"
	// ReasonDuplicateInUse: another host took the address of a VIP that was announced already. The VIP is
	// still announced. Change the host's address. It is a reason of Services, too.
	ReasonDuplicateInUse = "DuplicateInUse"
)

// Reasons of AddressAssigned: the condition of a Service, and its events.
const (
	// ReasonAddressAssigned: no action is needed.
	ReasonAddressAssigned = "AddressAssigned"
	// ReasonPoolExhausted: no address is free in the matching pools. Add addresses or a pool; the Service then
	// gets one.
	ReasonPoolExhausted = "PoolExhausted"
	// ReasonNoMatchingPool: no pool has the family and selects the Service and its namespace. Check the pools'
	// selectors, autoAssign, and condition Ready.
	ReasonNoMatchingPool = "NoMatchingPool"
	// ReasonAddressInUse: the Service in the message has the address and does not share it: its sharing key
	// or namespace differs, 64 Services share the address already, or it is reserved for that Service.
	// Request another address.
	ReasonAddressInUse = "AddressInUse"
	// ReasonAddressNotInPool: the requested address is in no pool that the Service may use.
	ReasonAddressNotInPool = "AddressNotInPool"
	// ReasonQuotaExceeded: the namespace has reached its quota of the pool; the message has the numbers.
	// Delete Services, share an address, or raise the quota:
	// docs/addresses.md#quotas.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonQuotaNearlyExceeded: an event: with this Service the namespace uses 80 % of its quota.
	ReasonQuotaNearlyExceeded = "QuotaNearlyExceeded"
	// ReasonSharedAddressUnavailable: an event: the Service got another address than the other Services with its
	// sharing key, because one of them has its port or the address is full. The event names both addresses.
	ReasonSharedAddressUnavailable = "SharedAddressUnavailable"
	// ReasonForeignAddress: the Service's status has an address or host name of another load balancer. It
	// is kept, and Millrace assigns no other one. To keep that address with Millrace, add it to a VIPPool
	// that selects the Service. To get another one, stop the other load balancer for the Service and remove
	// its entry from the status. Under Served: stop it, then remove its entry.
	ReasonForeignAddress = "ForeignAddress"
	// ReasonNoAddressToAdopt: with --adopt-only, the other load balancer must assign an address first: see
	// docs/migrate.md.
	ReasonNoAddressToAdopt = "NoAddressToAdopt"
	// ReasonWriteFailed: the API server rejected a write with the error in the message. It is retried.
	ReasonWriteFailed = "WriteFailed"
	// ReasonAddressReleased: an event: an address was released.
	ReasonAddressReleased = "AddressReleased"
)

// Reasons of Announced: the condition of VIPs and of Services with an address. Changes that follow each
// other are written with increasing pauses of up to five minutes. Other reasons are those of Served.
const (
	// ReasonAnnounced: no action is needed.
	ReasonAnnounced = "Announced"
)

// Reasons of Served: the condition of a Service with an address, and its events.
const (
	// ReasonServed: no action is needed. The message names fields that are ignored.
	ReasonServed = "Served"
	// ReasonStatusConflict: another program overwrote the status three times in 10 s, so it is written
	// only every 30 s. Find the program in the managed fields (kubectl get service NAME -o yaml
	// --show-managed-fields), and stop it for this Service. Addresses that it writes are kept.
	ReasonStatusConflict = "StatusConflict"
	// ReasonNotAnnounced: VIPAdvertisements select the address, but no selected node has an established BGP
	// session with a selected peer that carries the address's family. See `millrace bgp peers`, and
	// spec.families of the LBPeers. It is a reason of VIPs, too.
	ReasonNotAnnounced = "NotAnnounced"
	// ReasonPortConflict: another Service on the same address has the port; the message names both. Change
	// the port, or request another address. Of a VIP: two manual claims list the port; it belongs to the
	// first one.
	ReasonPortConflict = "PortConflict"
	// ReasonUnsupported: a port has an unsupported protocol, or is an SCTP port with a different
	// targetPort.
	ReasonUnsupported = "Unsupported"
)

// Reasons of an LBNodeReport: its conditions, and events about nodes.
const (
	// ReasonReady: Programmed, Attached and BGPEstablished are true.
	ReasonReady = "Ready"
	// ReasonProgrammed: the maps are complete. The message names settings of objects that are not served.
	ReasonProgrammed = "Programmed"
	// ReasonMapFull: the node's maps are full; the entries that fit are served. Raise the agents' flag in
	// the message. It is a reason of Services, too, with the node's name.
	ReasonMapFull = "MapFull"
	// ReasonProgrammingFailed: the kernel rejected a write with the error in the message. Existing entries are
	// kept, independent writes continue, and it is retried after at most 30 s.
	ReasonProgrammingFailed = "ProgrammingFailed"
	// ReasonNoNodeID: the node has no LBNode yet. Check that the operator runs. As an event of a Node: all
	// node numbers are used.
	ReasonNoNodeID = "NoNodeID"
	// ReasonAttached: every uplink that requires the programs has them. The message names other uplinks
	// without them. Tun and WireGuard devices never have them, because their packets have no Ethernet
	// header.
	ReasonAttached = "Attached"
	// ReasonAttachFailed: an uplink that requires the programs does not have them; the message has the
	// uplink and the error. An uplink requires them if it has an address of the node, or leads to an
	// LBPeer, which receives no routes meanwhile. If another XDP program is attached, remove it.
	ReasonAttachFailed = "AttachFailed"
	// ReasonNoUplink: no interface has a default route, the node's addresses or a network with a BGP peer.
	// Specify the interfaces with --uplinks.
	ReasonNoUplink = "NoUplink"
	// ReasonEstablished: every session is established.
	ReasonEstablished = "Established"
	// ReasonNotEstablished: a session is not established; the message has the first peers. See
	// docs/bgp.md#a-session-does-not-come-up.
	ReasonNotEstablished = "NotEstablished"
	// ReasonNoPeer: no LBPeer selects the node. The condition is true. Of a VIP: no peer of its
	// advertisements is for the node and has the VIP's family.
	ReasonNoPeer = "NoPeer"
	// ReasonHostCompatible: no configuration of the host is known to break traffic.
	ReasonHostCompatible = "HostCompatible"
	// ReasonHostIncompatible: a configuration of the host breaks traffic. Change the setting in the message.
	// Ready does not depend on it.
	ReasonHostIncompatible = "HostIncompatible"
	// ReasonUnexpectedUplink: packets of nodes arrived on an uplink that does not lead to those nodes, and were
	// dropped (tunnel_uplink). They are forged, or routing is asymmetric: see
	// docs/security.md#asymmetric-routing-between-nodes. The reason is cleared ten minutes after the last
	// packet.
	ReasonUnexpectedUplink = "UnexpectedUplink"
	// ReasonNodesDown: the nodes in the message do not answer: see docs/failures.md#when-a-node-dies.
	ReasonNodesDown = "NodesDown"
	// ReasonAgentsUnresponsive: the agents of the nodes in the message hang or are gone, since the time in the
	// message. New connections go to other nodes: see docs/failures.md#what-happens-when-.
	ReasonAgentsUnresponsive = "AgentsUnresponsive"
	// ReasonNodeIsolated: at least half of the nodes stopped answering at once. Check this node's network. Of a
	// VIP: the node is cut off from endpoints of the VIP, so that other nodes answer for it. See
	// docs/l2.md#a-network-that-is-split.
	ReasonNodeIsolated = "NodeIsolated"
	// ReasonLossyPath: paths to more than half of the nodes lose packets. Check the node's link.
	ReasonLossyPath = "LossyPath"
	// ReasonPathsVerified: probes through the routers reach all nodes that announce the canary.
	ReasonPathsVerified = "PathsVerified"
	// ReasonPending: no node announces the canary yet, or probes have not run for long enough.
	ReasonPending = "Pending"
	// ReasonRouteMissing: the router sends no packets to the nodes in the message. It filters their routes,
	// or uses fewer paths than there are nodes.
	ReasonRouteMissing = "RouteMissing"
	// ReasonHashIgnoresPorts: the router sends all probes of a node to the same node. Its hash ignores
	// ports, so probes cannot verify whether it uses the routes of the nodes that received none.
	ReasonHashIgnoresPorts = "HashIgnoresPorts"
	// ReasonNoProbeReplies: no probe through the router is answered. It filters the canary, or does not
	// reach the nodes.
	ReasonNoProbeReplies = "NoProbeReplies"
	// ReasonPacketsLost: packets from the router to the nodes in the message are lost. Their programs are
	// not attached, or the path to them is broken.
	ReasonPacketsLost = "PacketsLost"
	// ReasonLargePacketsLost: the nodes in the message answer short probes, but not those as long as the
	// MTU.
	ReasonLargePacketsLost = "LargePacketsLost"
	// ReasonPanicThreshold: most endpoints of most Services became unready at once, and are served
	// nevertheless: see docs/failures.md#all-pods-unready.
	ReasonPanicThreshold = "PanicThreshold"
	// ReasonMassRemoval: too many objects were removed at once, and are retained. Apply them again, or
	// confirm the removal: see docs/failures.md#what-is-removed-by-mistake.
	ReasonMassRemoval = "MassRemoval"
	// ReasonNodeNotReady: the Node is not ready, and Ready is Unknown. The condition is removed when the
	// Node is ready again.
	ReasonNodeNotReady = "NodeNotReady"
	// ReasonSeedMismatch: the node's seed of the flow hash differs from that in the Secret. Restore the
	// previous seed, or restart all agents: see docs/operate.md#the-seed-of-the-flow-hash.
	ReasonSeedMismatch = "SeedMismatch"
	// ReasonKeyInUse: no action is needed. As an event of the Secret: all nodes send with the new key.
	ReasonKeyInUse = "KeyInUse"
	// ReasonKeyMissing: the Secret of the tunnel's key does not exist. Check that the operator, which
	// creates it, runs.
	ReasonKeyMissing = "KeyMissing"
	// ReasonKeyInvalid: the Secret is invalid or cannot be read. Delete it, or apply the roles, according
	// to the message.
	ReasonKeyInvalid = "KeyInvalid"
	// ReasonKeyProgrammingFailed: the kernel rejected the key. It is retried.
	ReasonKeyProgrammingFailed = "KeyProgrammingFailed"
	// ReasonKeyNotConfirmed: a change of the key waits for the node. Check why its agent does not run or
	// report. As an event of the Secret: the change continues without the node.
	ReasonKeyNotConfirmed = "KeyNotConfirmed"
	// ReasonKeyGenerated: an event of the Secret: a new key was generated.
	ReasonKeyGenerated = "KeyGenerated"
)

// Reasons not to announce a VIP: the first that applies to a node, in this order. They are in LBNodeReports
// and in the answers of agents.
const (
	// ReasonNoService: no Service has the VIP; it is reserved.
	ReasonNoService = "NoService"
	// ReasonNotSelected: no advertisement that selects the node selects the VIP.
	ReasonNotSelected = "NotSelected"
	// ReasonDuplicateAddress: a host on a link of the node has had the VIP's address since before the VIP
	// was used; a later host does not stop the announcement. It is a reason of VIPs and Services, too.
	ReasonDuplicateAddress = "DuplicateAddress"
	// ReasonAddressTentative: the node checks whether a host has the address of a new VIP.
	ReasonAddressTentative = "AddressTentative"
	// ReasonNoFrontend: no Service on the VIP has a port that can be served.
	ReasonNoFrontend = "NoFrontend"
	// ReasonNotAttached: the programs are not attached to the node's uplinks.
	ReasonNotAttached = "NotAttached"
	// ReasonNotProgrammed: the maps have no usable frontend of the VIP, or, before its first announcement,
	// are not complete.
	ReasonNotProgrammed = "NotProgrammed"
	// ReasonNoEndpoints: no Service on the VIP has an endpoint.
	ReasonNoEndpoints = "NoEndpoints"
	// ReasonNoLocalEndpoint: externalTrafficPolicy is Local and no endpoint on the node is ready.
	ReasonNoLocalEndpoint = "NoLocalEndpoint"
	// ReasonOtherNodeSelected: another node answers for the VIP on its links.
	ReasonOtherNodeSelected = "OtherNodeSelected"
	// ReasonNoLink: no node that could answer for the VIP has an uplink in its network.
	ReasonNoLink = "NoLink"
	// ReasonNoNextHop: the node has no address of the VIP's family.
	ReasonNoNextHop = "NoNextHop"
	// ReasonNodeDraining: the node withdraws its routes (LBNode.spec.drainReason).
	ReasonNodeDraining = "NodeDraining"
	// ReasonReleasing: all Services that have the VIP are releasing it. It is a reason of events of
	// Services, too.
	ReasonReleasing = "Releasing"
)
