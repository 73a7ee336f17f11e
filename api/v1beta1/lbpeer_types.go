// SPDX-License-Identifier: Apache-2.0

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LBPeer is a router that nodes have a BGP session with: one session from
// every node that it selects.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=millrace,shortName=lbp
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Router",type=string,JSONPath=`.spec.router['address','gateway','range']`
// +kubebuilder:printcolumn:name="Peer ASN",type=integer,JSONPath=`.spec.peerASN`
// +kubebuilder:printcolumn:name="Local ASN",type=integer,JSONPath=`.spec.localASN`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type LBPeer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   LBPeerSpec   `json:"spec"`
	Status LBPeerStatus `json:"status,omitempty"`
}

// AddressFamily is an address family of BGP (RFC 4760), unicast.
//
// +kubebuilder:validation:Enum=IPv4;IPv6
type AddressFamily string

// Address families.
const (
	FamilyIPv4 AddressFamily = "IPv4"
	FamilyIPv6 AddressFamily = "IPv6"
)

// LBPeerSpec says how sessions with a peer are held.
//
// +kubebuilder:validation:XValidation:rule="!has(self.keepaliveTime) || !has(self.holdTime) || duration(self.keepaliveTime) + duration(self.keepaliveTime) + duration(self.keepaliveTime) <= duration(self.holdTime)",message="holdTime must be at least three times keepaliveTime"
// +kubebuilder:validation:XValidation:rule="!has(self.router.range) || !has(self.peerPort) || self.peerPort == 179",message="peerPort is where nodes connect to; to a range of routers they do not"
// +kubebuilder:validation:XValidation:rule="!has(self.router.range) || (!has(self.sourceAddress) && !has(self.sourceInterface))",message="sourceAddress and sourceInterface are not for a range: its routers connect to any address of the node"
// +kubebuilder:validation:XValidation:rule="has(self.peerASN) != has(self.dynamicASN)",message="give either peerASN or dynamicASN"
// +kubebuilder:validation:XValidation:rule="!has(self.ttlSecurityHops) || !has(self.multihopTTL)",message="ttlSecurityHops and multihopTTL exclude each other"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !has(self.sourceInterface)",message="give either sourceAddress or sourceInterface"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !isIP(self.sourceAddress) || !has(self.router.address) || !isIP(self.router.address) || ip(self.sourceAddress).family() == ip(self.router.address).family()",message="sourceAddress must be of the family of the router's address"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !isIP(self.sourceAddress) || !has(self.router.gateway) || self.router.gateway == (ip(self.sourceAddress).family() == 4 ? 'IPv4' : 'IPv6')",message="sourceAddress must be of the family of the gateway"
// +kubebuilder:validation:XValidation:rule="!has(self.passive) || !self.passive || !has(self.peerPort) || self.peerPort == 179",message="peerPort is where nodes connect to; of a passive peer they do not"
// +kubebuilder:validation:XValidation:rule="!has(self.extendedNextHop) || !self.extendedNextHop || (has(self.families) && 'IPv4' in self.families)",message="extendedNextHop is about IPv4 routes: add IPv4 to families"
// +kubebuilder:validation:XValidation:rule="!has(self.extendedNextHop) || !self.extendedNextHop || ((!has(self.router.gateway) || self.router.gateway == 'IPv6') && (!has(self.router.range) || !isCIDR(self.router.range) || cidr(self.router.range).ip().family() == 6) && (!has(self.router.address) || !isIP(self.router.address) || ip(self.router.address).family() == 6))",message="extendedNextHop is for IPv6 sessions"
// +kubebuilder:validation:XValidation:rule="!has(self.bfd) || !has(self.bfd.minimumTTL) || (has(self.bfd.enabled) && !self.bfd.enabled) || (has(self.bfd.multihop) ? self.bfd.multihop : has(self.multihopTTL) && self.multihopTTL > 1)",message="bfd.minimumTTL is for multihop sessions, bfd.multihop or multihopTTL: packets of a directly connected router must have 255"
type LBPeerSpec struct {
	// Router identifies the router, by its address, as the gateway of each node, or by a range.
	Router Router `json:"router"`

	// PeerASN is the router's autonomous system number. A session with another one is
	// refused.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	PeerASN int64 `json:"peerASN,omitempty"`

	// DynamicASN takes the router's number from its OPEN: Internal only localASN, External
	// any other.
	//
	// +optional
	DynamicASN DynamicASN `json:"dynamicASN,omitempty"`

	// LocalASN is the nodes' autonomous system number.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	LocalASN int64 `json:"localASN"`

	// PeerPort is the TCP port of the router.
	//
	// +optional
	// +kubebuilder:default=179
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	PeerPort int32 `json:"peerPort,omitempty"`

	// Passive has the router connect: nodes listen at TCP port 179 and do not connect to it.
	//
	// +optional
	Passive bool `json:"passive,omitempty"`

	// NodeSelector limits the peer to nodes with these labels. An absent
	// selector means all nodes.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// Families that are announced in the session. Default: the family of the router. Another
	// family is announced with the node's own address of that family as the next hop.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	Families []AddressFamily `json:"families,omitempty"`

	// ExtendedNextHop has IPv4 routes announced with an IPv6 next hop (RFC 8950), over an IPv6
	// session. A router that does not offer the capability gets no IPv4 routes.
	//
	// +optional
	ExtendedNextHop bool `json:"extendedNextHop,omitempty"`

	// HoldTime after which a silent session is taken for dead (RFC 4271,
	// section 4.2): whole seconds, at least 3s.
	//
	// +optional
	// +kubebuilder:default="90s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3s') && duration(self) <= duration('65535s')",message="must be between 3s and 65535s"
	// +kubebuilder:validation:XValidation:rule="duration(self).getMilliseconds() % 1000 == 0",message="must be whole seconds: the router is told seconds"
	HoldTime *metav1.Duration `json:"holdTime,omitempty"`

	// KeepaliveTime between two keepalive messages; default a third of
	// holdTime.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	KeepaliveTime *metav1.Duration `json:"keepaliveTime,omitempty"`

	// ConnectRetryTime between two attempts to connect (RFC 4271, section 8.2), up to a
	// quarter less at random. It is the longest pause: the first ones after a session was lost
	// are shorter, from 250ms on, each twice the one before.
	//
	// +optional
	// +kubebuilder:default="3s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('600s')",message="must be between 1s and 600s"
	ConnectRetryTime *metav1.Duration `json:"connectRetryTime,omitempty"`

	// MultihopTTL is the TTL of the session's packets to a router that is
	// not directly connected. Absent or 1: directly connected.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	MultihopTTL *int32 `json:"multihopTTL,omitempty"`

	// TTLSecurityHops switches TTL security on (GTSM, RFC 5082), and is how many hops away
	// the router may be: 1 for a directly connected one. Packets from farther away are
	// dropped by the kernel. The router needs the same.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	TTLSecurityHops *int32 `json:"ttlSecurityHops,omitempty"`

	// SourceAddress is the node's address in the session. It fits one node: see
	// nodeSelector.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an IP address"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast()",message="must be an address of the node: neither multicast, loopback, link-local nor unspecified"
	SourceAddress string `json:"sourceAddress,omitempty"`

	// SourceInterface is an interface whose first address of the router's family is the
	// node's address in the session, such as a loopback interface with the node's own
	// address.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[^/\s:%]+$`
	SourceInterface string `json:"sourceInterface,omitempty"`

	// PasswordSecretRef names a Secret of namespace millrace-bgp. Its key "password" is the
	// TCP MD5 password of the sessions (RFC 2385). Without the Secret there is no session.
	//
	// +optional
	PasswordSecretRef *SecretReference `json:"passwordSecretRef,omitempty"`

	// GracefulRestart (RFC 4724) keeps the node's routes while its agent
	// restarts; the programs in the kernel go on forwarding meanwhile.
	//
	// +optional
	// +kubebuilder:default={}
	GracefulRestart *GracefulRestart `json:"gracefulRestart,omitempty"`

	// BFD finds a cut link or a dead router faster than holdTime. Absent: no BFD session.
	//
	// +optional
	BFD *BFD `json:"bfd,omitempty"`

	// Canaries are addresses, one of each family at most, by which nodes prove that this router
	// uses their routes. All nodes with a session announce them to this router alone, and answer
	// probes there. No Service gets such an address, and no two LBPeers have the same. Absent:
	// nothing is proved.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(canary, isIP(canary) && ip(canary).isGlobalUnicast())",message="must be unicast IP addresses that nothing else has"
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || !self.all(canary, isIP(canary)) || ip(self[0]).family() != ip(self[1]).family()",message="give one canary of each family at most"
	// +listType=atomic
	Canaries []string `json:"canaries,omitempty"`
}

// Router says where a router is: one of address, gateway and range.
//
// +kubebuilder:validation:XValidation:rule="[has(self.address), has(self.gateway), has(self.range)].filter(given, given).size() == 1",message="give either address or gateway, or range"
// +kubebuilder:validation:XValidation:rule="has(self.range) || !has(self.maxPeers)",message="maxPeers is for a range"
// +kubebuilder:validation:XValidation:rule="(has(self.address) && !isIP(self.address)) || has(self.interface) == (has(self.address) && ip(self.address).family() == 6 && ip(self.address).isLinkLocalUnicast())",message="an IPv6 link-local address needs interface, and no other router has one"
type Router struct {
	// Address is that of the router.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an IP address"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast() || ip(self).isLoopback() || ip(self).isLinkLocalUnicast()",message="must be the address of a router: neither multicast nor unspecified"
	Address string `json:"address,omitempty"`

	// Interface is the node's interface that leads to a router with an IPv6 link-local address.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[^/\s:%]+$`
	Interface string `json:"interface,omitempty"`

	// Gateway takes each node's gateway of this family for the router, as its default route has it.
	//
	// +optional
	Gateway AddressFamily `json:"gateway,omitempty"`

	// Range has nodes take sessions from all routers of a network. The routers connect. An LBPeer
	// with the address of a router of the network goes before it.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="must be a network such as 198.51.100.0/28"
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self).ip().isGlobalUnicast()",message="must be a network of routers: neither multicast, loopback, link-local nor unspecified"
	Range string `json:"range,omitempty"`

	// MaxPeers is how many routers of range a node takes sessions from, the first that connect.
	// Default: 16.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	MaxPeers *int32 `json:"maxPeers,omitempty"`
}

// DynamicASN says which autonomous systems a router may be of.
//
// +kubebuilder:validation:Enum=External;Internal
type DynamicASN string

// Dynamic autonomous systems.
const (
	ExternalASN DynamicASN = "External"
	InternalASN DynamicASN = "Internal"
)

// BGPNamespace is the namespace of Secrets with passwords of BGP sessions. Agents may read
// all of its Secrets, and no others.
const BGPNamespace = "millrace-bgp"

// SecretReference names a Secret of namespace millrace-bgp.
type SecretReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// GracefulRestart is the graceful restart of a session (RFC 4724).
type GracefulRestart struct {
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// RestartTime is how long the router keeps the routes of a node whose
	// agent is away: whole seconds, at most 4095s (RFC 4724, section 3).
	//
	// +optional
	// +kubebuilder:default="120s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('4095s')",message="must be between 1s and 4095s"
	// +kubebuilder:validation:XValidation:rule="duration(self).getMilliseconds() % 1000 == 0",message="must be whole seconds: the router is told seconds"
	RestartTime *metav1.Duration `json:"restartTime,omitempty"`
}

// LBPeerStatus is what the operator observed of a peer. The state of its
// sessions is in each LBNode.
type LBPeerStatus struct {
	// Conditions: Ready, with reason Valid or Invalid; ReachedThroughRouters, present only where
	// there are canaries.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// LBPeerList is a list of LBPeers.
//
// +kubebuilder:object:root=true
type LBPeerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LBPeer `json:"items"`
}
