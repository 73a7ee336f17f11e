// SPDX-License-Identifier: Apache-2.0

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LBPeer represents a router that nodes have BGP sessions with: one session from every node that it
// selects.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=millrace,shortName=lbp
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Router",type=string,JSONPath=`.spec.router['address','gateway','range','interface']`
// +kubebuilder:printcolumn:name="Peer ASN",type=integer,JSONPath=`.spec.peerASN`
// +kubebuilder:printcolumn:name="Local ASN",type=integer,JSONPath=`.spec.localASN`
// +kubebuilder:printcolumn:name="Established",type=integer,JSONPath=`.status.sessions.established`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.sessions.desired`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type LBPeer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   LBPeerSpec   `json:"spec"`
	Status LBPeerStatus `json:"status,omitempty"`
}

// AddressFamily is a BGP address family (RFC 4760), unicast.
//
// +kubebuilder:validation:Enum=IPv4;IPv6
type AddressFamily string

// Address families.
const (
	FamilyIPv4 AddressFamily = "IPv4"
	FamilyIPv6 AddressFamily = "IPv6"
)

// LBPeerSpec configures the sessions with a router.
//
// +kubebuilder:validation:XValidation:rule="!has(self.keepaliveTime) || !has(self.holdTime) || duration(self.keepaliveTime) + duration(self.keepaliveTime) + duration(self.keepaliveTime) <= duration(self.holdTime)",message="holdTime must be at least three times keepaliveTime"
// +kubebuilder:validation:XValidation:rule="!has(self.router.range) || !has(self.peerPort) || self.peerPort == 179",message="peerPort must be 179 for a range of routers: nodes do not connect to them"
// +kubebuilder:validation:XValidation:rule="!has(self.router.range) || (!has(self.sourceAddress) && !has(self.sourceInterface))",message="sourceAddress and sourceInterface are mutually exclusive with range: routers of a range connect to any address of the node"
// +kubebuilder:validation:XValidation:rule="has(self.peerASN) != has(self.dynamicASN)",message="specify either peerASN or dynamicASN"
// +kubebuilder:validation:XValidation:rule="!has(self.ttlSecurityHops) || !has(self.multihopTTL)",message="ttlSecurityHops and multihopTTL are mutually exclusive"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !has(self.router.address) || self.sourceAddress != self.router.address",message="sourceAddress is the router's address: write the address of the node"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !has(self.sourceInterface)",message="specify either sourceAddress or sourceInterface"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !isIP(self.sourceAddress) || !has(self.router.address) || !isIP(self.router.address) || ip(self.sourceAddress).family() == ip(self.router.address).family()",message="sourceAddress must have the family of the router's address"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !isIP(self.sourceAddress) || !has(self.router.gateway) || self.router.gateway == (ip(self.sourceAddress).family() == 4 ? 'IPv4' : 'IPv6')",message="sourceAddress must have the family of the gateway"
// +kubebuilder:validation:XValidation:rule="!has(self.sourceAddress) || !has(self.router.interface) || has(self.router.address)",message="sourceAddress is mutually exclusive with a router by interface: the session has link-local addresses"
// +kubebuilder:validation:XValidation:rule="!has(self.passive) || !self.passive || !has(self.peerPort) || self.peerPort == 179",message="peerPort must be 179 for a passive peer: nodes do not connect to it"
// +kubebuilder:validation:XValidation:rule="!has(self.extendedNextHop) || !self.extendedNextHop || (has(self.families) && 'IPv4' in self.families)",message="extendedNextHop applies to IPv4 routes: add IPv4 to families"
// +kubebuilder:validation:XValidation:rule="!has(self.extendedNextHop) || !self.extendedNextHop || ((!has(self.router.gateway) || self.router.gateway == 'IPv6') && (!has(self.router.range) || !isCIDR(self.router.range) || cidr(self.router.range).ip().family() == 6) && (!has(self.router.address) || !isIP(self.router.address) || ip(self.router.address).family() == 6))",message="extendedNextHop requires an IPv6 session"
// +kubebuilder:validation:XValidation:rule="!has(self.bfd) || !has(self.bfd.minimumTTL) || (has(self.bfd.enabled) && !self.bfd.enabled) || (has(self.bfd.multihop) ? self.bfd.multihop : has(self.multihopTTL) && self.multihopTTL > 1)",message="bfd.minimumTTL requires a multihop session (bfd.multihop or multihopTTL): packets of a directly connected router must have TTL 255"
type LBPeerSpec struct {
	// Router specifies the router: by its address, as the gateway of each node, by a range, or by an interface.
	Router Router `json:"router"`

	// PeerASN specifies the router's autonomous system number. Sessions with another number are rejected.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	// +kubebuilder:validation:XValidation:rule="self != 23456",message="23456 is AS_TRANS, which no autonomous system has (RFC 6793)"
	PeerASN int64 `json:"peerASN,omitempty"`

	// DynamicASN specifies which AS number is accepted in the router's OPEN message: Internal accepts only
	// localASN, External any other number.
	//
	// +optional
	DynamicASN DynamicASN `json:"dynamicASN,omitempty"`

	// LocalASN specifies the nodes' autonomous system number.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4294967295
	// +kubebuilder:validation:XValidation:rule="self != 23456",message="23456 is AS_TRANS, which no autonomous system has (RFC 6793)"
	LocalASN int64 `json:"localASN"`

	// PeerPort specifies the TCP port of the router.
	//
	// +optional
	// +kubebuilder:default=179
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	PeerPort int32 `json:"peerPort,omitempty"`

	// Passive is true if the router connects: nodes listen on TCP port 179 and do not connect.
	//
	// +optional
	Passive bool `json:"passive,omitempty"`

	// NodeSelector limits the peer to nodes with these labels. Defaults to all nodes.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// Families specifies the address families announced in the session. Defaults to the family of the
	// router. Routes of the other family have the node's own address of this family as next hop.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	Families []AddressFamily `json:"families,omitempty"`

	// ExtendedNextHop announces IPv4 routes with an IPv6 next hop (RFC 8950) in an IPv6 session. A router
	// without this capability receives no IPv4 routes.
	//
	// +optional
	ExtendedNextHop bool `json:"extendedNextHop,omitempty"`

	// HoldTime specifies the time without messages after which a session is closed (RFC 4271, section 4.2):
	// whole seconds, at least 3s.
	//
	// +optional
	// +kubebuilder:default="90s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3s') && duration(self) <= duration('65535s')",message="must be between 3s and 65535s"
	// +kubebuilder:validation:XValidation:rule="duration(self).getMilliseconds() % 1000 == 0",message="must be whole seconds, as in BGP messages"
	HoldTime *metav1.Duration `json:"holdTime,omitempty"`

	// KeepaliveTime specifies the interval between keepalive messages. Defaults to a third of holdTime.
	//
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be at least 1s"
	KeepaliveTime *metav1.Duration `json:"keepaliveTime,omitempty"`

	// ConnectRetryTime specifies the maximum interval between attempts to connect (RFC 4271, section 8.2),
	// reduced by up to a quarter at random. After a session is lost, the interval starts at 250ms and
	// doubles with each attempt.
	//
	// +optional
	// +kubebuilder:default="3s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('600s')",message="must be between 1s and 600s"
	ConnectRetryTime *metav1.Duration `json:"connectRetryTime,omitempty"`

	// MultihopTTL specifies the TTL of the session's packets to a router that is not directly connected.
	// Defaults to 1, a directly connected router.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=255
	MultihopTTL *int32 `json:"multihopTTL,omitempty"`

	// TTLSecurityHops enables TTL security (GTSM, RFC 5082) and specifies the maximum distance of the
	// router in hops: 1 for a directly connected one. The kernel drops packets from farther away. The
	// router needs the same configuration.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	TTLSecurityHops *int32 `json:"ttlSecurityHops,omitempty"`

	// SourceAddress specifies the node's address in the session. It can match one node only: see
	// nodeSelector.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an IP address"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast()",message="must be an address of the node: neither multicast, loopback, link-local nor unspecified"
	SourceAddress string `json:"sourceAddress,omitempty"`

	// SourceInterface specifies an interface whose first address of the router's family is the node's
	// address in the session, such as a loopback interface with the node's own address.
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[^/\s:%]+$`
	SourceInterface string `json:"sourceInterface,omitempty"`

	// PasswordSecretRef references a Secret in namespace millrace-bgp. Its key "password" is the TCP MD5
	// password of the sessions (RFC 2385). Without the Secret no session is established.
	//
	// +optional
	PasswordSecretRef *SecretReference `json:"passwordSecretRef,omitempty"`

	// GracefulRestart (RFC 4724) keeps the node's routes while its agent restarts; the programs in the
	// kernel continue to forward.
	//
	// +optional
	// +kubebuilder:default={}
	GracefulRestart *GracefulRestart `json:"gracefulRestart,omitempty"`

	// BFD detects a broken link or router faster than holdTime. Absent: no BFD session.
	//
	// +optional
	BFD *BFD `json:"bfd,omitempty"`

	// Canaries specifies addresses, at most one per family, for verifying that the router uses the routes
	// of all nodes. All nodes with a session announce them to this router only, and answer probes to them.
	// They are not assigned to Services, and two LBPeers must not have the same canary. Absent: no
	// verification.
	//
	// +optional
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(canary, isIP(canary) && ip(canary).isGlobalUnicast())",message="must be unicast IP addresses that are not used elsewhere"
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || !self.all(canary, isIP(canary)) || ip(self[0]).family() != ip(self[1]).family()",message="specify at most one canary per family"
	// +listType=atomic
	Canaries []string `json:"canaries,omitempty"`
}

// Router is the location of a router: one of address, gateway, range and interface.
//
// +kubebuilder:validation:XValidation:rule="[has(self.address), has(self.gateway), has(self.range), has(self.interface) && !has(self.address)].filter(given, given).size() == 1",message="specify exactly one of address, gateway, range and interface"
// +kubebuilder:validation:XValidation:rule="has(self.range) || !has(self.maxPeers)",message="maxPeers requires range"
// +kubebuilder:validation:XValidation:rule="!has(self.address) || !isIP(self.address) || has(self.interface) == (ip(self.address).family() == 6 && ip(self.address).isLinkLocalUnicast())",message="interface is required for an IPv6 link-local address, and must not be set for another address"
type Router struct {
	// Address specifies the router's address.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an IP address"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast() || ip(self).isLoopback() || ip(self).isLinkLocalUnicast()",message="must be the address of a router: neither multicast nor unspecified"
	Address string `json:"address,omitempty"`

	// Interface specifies the node's interface for a router with an IPv6 link-local address. Without address,
	// the router of an unnumbered session is found by its router advertisements on the interface (RFC 4861).
	//
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^[^/\s:%]+$`
	Interface string `json:"interface,omitempty"`

	// Gateway uses each node's gateway of this family, from its default route, as the router.
	//
	// +optional
	Gateway AddressFamily `json:"gateway,omitempty"`

	// Range accepts sessions from all routers in a network. The routers connect. An LBPeer with the address
	// of a router in the network takes precedence for this router.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="must be a network such as 198.51.100.0/28"
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || cidr(self).ip().isGlobalUnicast()",message="must be a network of routers: neither multicast, loopback, link-local nor unspecified"
	Range string `json:"range,omitempty"`

	// MaxPeers specifies the maximum number of routers in range with a session to a node; the first to
	// connect are accepted. Defaults to 16.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	MaxPeers *int32 `json:"maxPeers,omitempty"`
}

// DynamicASN specifies the autonomous systems that a router may have.
//
// +kubebuilder:validation:Enum=External;Internal
type DynamicASN string

// Dynamic autonomous systems.
const (
	ExternalASN DynamicASN = "External"
	InternalASN DynamicASN = "Internal"
)

// BGPNamespace is the namespace of Secrets with passwords of BGP sessions. Agents can read all Secrets in
// this namespace, and no others.
const BGPNamespace = "millrace-bgp"

// SecretReference references a Secret in namespace millrace-bgp.
type SecretReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// GracefulRestart configures graceful restart (RFC 4724).
type GracefulRestart struct {
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// RestartTime specifies how long the router keeps the routes of a node without an agent: whole seconds,
	// at most 4095s (RFC 4724, section 3).
	//
	// +optional
	// +kubebuilder:default="120s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('4095s')",message="must be between 1s and 4095s"
	// +kubebuilder:validation:XValidation:rule="duration(self).getMilliseconds() % 1000 == 0",message="must be whole seconds, as in BGP messages"
	RestartTime *metav1.Duration `json:"restartTime,omitempty"`
}

// LBPeerStatus is written by the operator. The state of the sessions is in each node's LBNodeReport.
type LBPeerStatus struct {
	// Sessions counts the peer's sessions. It is absent until the operator has counted them. Changes that
	// follow each other are written with increasing pauses of up to five minutes; live.millrace.io has the
	// current sessions.
	//
	// +optional
	Sessions *SessionCounts `json:"sessions,omitempty"`

	// Conditions: Ready, with reason Valid or Invalid; PathsVerified, present only with canaries.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// SessionCounts counts the sessions of an LBPeer.
type SessionCounts struct {
	// Established is the number of established sessions, according to the LBNodeReports of ready nodes.
	Established int32 `json:"established"`
	// Desired is the number of nodes that the LBPeer selects, or, for a range of routers, the number of
	// sessions that these nodes report.
	Desired int32 `json:"desired"`
}

// LBPeerList is a list of LBPeers.
//
// +kubebuilder:object:root=true
type LBPeerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []LBPeer `json:"items"`
}
