// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Defaults of LBPeer. They equal those of its schema.
const (
	defaultPeerPort         = 179
	defaultHoldTime         = 90 * time.Second
	defaultConnectRetryTime = 3 * time.Second
	defaultRestartTime      = 120 * time.Second
	defaultMaxPeers         = 16
)

// longestTime is the maximum of a 16-bit field in seconds, such as the hold time (RFC 4271, section 4.2).
const longestTime = math.MaxUint16 * time.Second

// transitionASN is AS_TRANS (RFC 6793, section 9).
const transitionASN = 23456

// PasswordKey is the key of the sessions' password in a Secret.
const PasswordKey = "password"

// LongestPassword is the maximum length of a password in bytes (Linux, TCP_MD5SIG_MAXKEYLEN).
const LongestPassword = 80

// Peer is a parsed and valid LBPeer.
type Peer struct {
	// Session is a template for a range of routers: each router of the range has a copy.
	Session
	// Gateway is the family of the default route whose gateway is the router; empty if the router is
	// specified otherwise.
	Gateway millracev1beta1.AddressFamily
	// Interface is the interface on which the router is found by its router advertisements; empty if the
	// router is specified otherwise.
	Interface string
	// Range is the network of a range of routers and MaxPeers the maximum number of routers with a session to
	// a node. For a single router, Range is invalid and MaxPeers 0.
	Range    netip.Prefix
	MaxPeers int
	Nodes    labels.Selector
	// BFD is the zero value if the peer has no BFD session.
	BFD      BFD
	Canaries []netip.Addr
}

// Session configures a node's BGP session with a router.
type Session struct {
	// Name is the name of the LBPeer. For a router of a range, the router's address follows.
	Name string
	// OfRange is the name of the LBPeer for a router of a range; otherwise empty.
	OfRange string
	Address netip.Addr
	Port    uint16
	// ASN is 0 if any AS number except LocalASN is accepted.
	ASN, LocalASN uint32
	HoldTime      time.Duration
	// KeepaliveTime is in whole seconds, like the other times.
	KeepaliveTime    time.Duration
	ConnectRetryTime time.Duration
	// Passive is true if the node waits for a connection of the router.
	Passive bool
	// MultiHopTTL is the TTL of the session's packets; 0 for a directly connected router.
	MultiHopTTL uint8
	// SecurityHops is the maximum distance of the router in hops for TTL security (RFC 5082); 0 disables it.
	SecurityHops uint8
	// Source is the node's address in the session, or SourceInterface is the interface with this address.
	// Without both, the kernel selects the address.
	Source          netip.Addr
	SourceInterface string
	PasswordSecret  string
	// IPv4 and IPv6 are the families whose routes are announced.
	IPv4, IPv6 bool
	// ExtendedNextHop is true if IPv4 routes have an IPv6 next hop (RFC 8950).
	ExtendedNextHop bool
	// RestartTime is the restart time of graceful restart; 0 disables graceful restart.
	RestartTime time.Duration
}

// ParsePeer parses an LBPeer. If it is invalid, only Name, and Nodes unless nil, may be used.
func ParsePeer(object *millracev1beta1.LBPeer) (Peer, []Problem) {
	p := problems{object: Object{Kind: "LBPeer", Name: object.Name}}
	spec := &object.Spec
	peer := Peer{Session: Session{Name: object.Name}}
	p.router(&peer, &spec.Router)
	p.systems(&peer.Session, spec)
	peer.Port = uint16(p.within("spec.peerPort", int64(cmp.Or(spec.PeerPort, defaultPeerPort)), 1, math.MaxUint16))
	peer.Nodes = p.selector("spec.nodeSelector", spec.NodeSelector)
	p.families(&peer, spec.Families)
	p.extendedNextHop(&peer, spec)
	peer.Passive = spec.Passive || peer.Range.IsValid()
	if peer.Passive && peer.Port != defaultPeerPort {
		p.invalid("spec.peerPort", "must be 179 for a passive peer: nodes do not connect to it")
	}
	p.times(&peer.Session, spec)
	if spec.MultihopTTL != nil {
		if ttl := p.within("spec.multihopTTL", int64(*spec.MultihopTTL), 1, math.MaxUint8); ttl > 1 {
			peer.MultiHopTTL = uint8(ttl)
		}
	}
	peer.BFD = p.bfd(&peer.Session, spec.BFD)
	p.security(&peer.Session, spec)
	p.source(&peer, spec)
	p.canaries(&peer, spec.Canaries)
	return peer, p.found
}

func (p *problems) canaries(peer *Peer, texts []string) {
	const field = "spec.canaries"
	for _, text := range texts {
		address, err := ParseAddress(text)
		if err != nil {
			p.invalid(field, "%v", err)
			continue
		}
		if special, found := specialOf(address); found {
			p.invalid(field, "%s is %s (%s), which is not routable", address, special.kind, special.prefix)
		}
		if address.Is4() && !peer.IPv4 || address.Is6() && !peer.IPv6 {
			p.invalid(field, "%s has a family that is not announced to the router: add it to spec.families", address)
		}
		if slices.ContainsFunc(peer.Canaries, func(other netip.Addr) bool { return other.Is4() == address.Is4() }) {
			p.invalid(field, "%s is the second canary of its family: at most one is allowed", address)
		}
		peer.Canaries = append(peer.Canaries, address)
	}
}

func (p *problems) router(peer *Peer, router *millracev1beta1.Router) {
	switch {
	case router.Gateway != "":
		p.gateway(peer, router)
		return
	case router.Range != "":
		p.routers(peer, router)
		return
	case router.MaxPeers != nil:
		p.invalid("spec.router.maxPeers", "requires spec.router.range")
	}
	if router.Interface != "" && router.Address == "" {
		peer.Interface = router.Interface
		return
	}
	address, err := parseRouter(router.Address)
	if err != nil {
		p.invalid("spec.router.address", "%v", err)
		return
	}
	switch linkLocal := address.Is6() && address.IsLinkLocalUnicast(); {
	case linkLocal && router.Interface == "":
		p.invalid("spec.router.interface", "is required, because %s is link-local", address)
	case !linkLocal && router.Interface != "":
		p.invalid("spec.router.interface", "requires an IPv6 link-local address: the node's routes select the interface to %s", address)
	}
	peer.Address = address.WithZone(router.Interface)
}

func (p *problems) gateway(peer *Peer, router *millracev1beta1.Router) {
	switch family := router.Gateway; {
	case family != millracev1beta1.FamilyIPv4 && family != millracev1beta1.FamilyIPv6:
		p.invalid("spec.router.gateway", "%q is neither IPv4 nor IPv6", family)
	case router.Address != "":
		p.invalid("spec.router.gateway", "is mutually exclusive with spec.router.address")
	case router.Interface != "":
		p.invalid("spec.router.interface", "is mutually exclusive with spec.router.gateway")
	}
	peer.Gateway = router.Gateway
}

func (p *problems) routers(peer *Peer, router *millracev1beta1.Router) {
	prefix, err := ParsePrefix(router.Range)
	if err != nil {
		p.invalid("spec.router.range", "%v", err)
		return
	}
	if special, found := specialOf(prefix.Addr()); found {
		p.invalid("spec.router.range", "%s is %s (%s), not a network of routers", prefix, special.kind, special.prefix)
	}
	if router.Address != "" {
		p.invalid("spec.router.range", "is mutually exclusive with spec.router.address")
	}
	if router.Interface != "" {
		p.invalid("spec.router.interface", "is mutually exclusive with spec.router.range")
	}
	peer.Range, peer.MaxPeers = prefix, defaultMaxPeers
	if router.MaxPeers != nil {
		peer.MaxPeers = int(p.within("spec.router.maxPeers", int64(*router.MaxPeers), 1, 64))
	}
}

func (p *Peer) isFamily(family millracev1beta1.AddressFamily) bool {
	if p.Gateway != "" {
		return p.Gateway == family
	}
	is4 := p.Address.Is4() || p.Range.IsValid() && p.Range.Addr().Is4()
	is6 := p.Address.Is6() || p.Interface != "" || p.Range.IsValid() && p.Range.Addr().Is6()
	return is4 && family == millracev1beta1.FamilyIPv4 || is6 && family == millracev1beta1.FamilyIPv6
}

func (p *problems) systems(session *Session, spec *millracev1beta1.LBPeerSpec) {
	if spec.DynamicASN == "" {
		session.ASN = p.system("spec.peerASN", spec.PeerASN)
	}
	session.LocalASN = p.system("spec.localASN", spec.LocalASN)
	switch {
	case spec.DynamicASN == "":
	case spec.PeerASN != 0:
		p.invalid("spec.dynamicASN", "is mutually exclusive with spec.peerASN")
	case spec.DynamicASN == millracev1beta1.InternalASN:
		session.ASN = session.LocalASN
	case spec.DynamicASN != millracev1beta1.ExternalASN:
		p.invalid("spec.dynamicASN", "%q is neither External nor Internal", spec.DynamicASN)
	}
}

func (p *problems) system(field string, asn int64) uint32 {
	if asn == transitionASN {
		p.invalid(field, "%d is AS_TRANS, which no autonomous system has (RFC 6793)", asn)
	}
	return uint32(p.within(field, asn, 1, math.MaxUint32))
}

func (p *problems) security(session *Session, spec *millracev1beta1.LBPeerSpec) {
	if spec.TTLSecurityHops != nil {
		session.SecurityHops = uint8(p.within("spec.ttlSecurityHops", int64(*spec.TTLSecurityHops), 1, math.MaxUint8-1))
		if spec.MultihopTTL != nil {
			p.invalid("spec.ttlSecurityHops", "is mutually exclusive with spec.multihopTTL: it already limits the distance to the router")
		}
	}
	if spec.PasswordSecretRef != nil {
		session.PasswordSecret = spec.PasswordSecretRef.Name
		if session.PasswordSecret == "" {
			p.invalid("spec.passwordSecretRef.name", "is required")
		}
	}
}

func (p *problems) source(peer *Peer, spec *millracev1beta1.LBPeerSpec) {
	peer.SourceInterface = spec.SourceInterface
	if peer.Range.IsValid() && (spec.SourceAddress != "" || spec.SourceInterface != "") {
		p.invalid("spec.router.range", "is mutually exclusive with sourceAddress and sourceInterface: routers connect to any address of the node")
	}
	if spec.SourceAddress == "" {
		return
	}
	address, err := ParseHost(spec.SourceAddress)
	switch {
	case err != nil:
		p.invalid("spec.sourceAddress", "%v", err)
	case spec.SourceInterface != "":
		p.invalid("spec.sourceAddress", "is mutually exclusive with spec.sourceInterface")
	case address == peer.Address:
		p.invalid("spec.sourceAddress", "%s is the router's address: write the address of the node", address)
	case peer.Address.IsValid() && address.Is4() != peer.Address.Is4():
		p.invalid("spec.sourceAddress", "%s does not have the family of spec.router.address, %s", address, peer.Address)
	case peer.Interface != "":
		p.invalid("spec.sourceAddress", "is mutually exclusive with a router by interface: the session has link-local addresses")
	case peer.Gateway != "" && address.Is4() != (peer.Gateway == millracev1beta1.FamilyIPv4):
		p.invalid("spec.sourceAddress", "%s does not have the family of spec.router.gateway, %s", address, peer.Gateway)
	}
	peer.Source = address
}

// parseRouter parses the address of a router. It accepts loopback addresses, because a router can run on the
// node, and link-local IPv4 addresses, which some providers use.
func parseRouter(text string) (netip.Addr, error) {
	address, err := ParseAddress(text)
	if err != nil {
		return netip.Addr{}, err
	}
	switch special, found := specialOf(address); {
	case !found || special.kind == "loopback" || special.kind == "link-local":
		return address, nil
	default:
		return netip.Addr{}, fmt.Errorf("%s is %s (%s), not the address of a router", address, special.kind, special.prefix)
	}
}

func (p *problems) families(peer *Peer, families []millracev1beta1.AddressFamily) {
	if len(families) == 0 {
		peer.IPv4 = peer.isFamily(millracev1beta1.FamilyIPv4)
		peer.IPv6 = peer.isFamily(millracev1beta1.FamilyIPv6)
	}
	for i, family := range families {
		switch family {
		case millracev1beta1.FamilyIPv4:
			peer.IPv4 = true
		case millracev1beta1.FamilyIPv6:
			peer.IPv6 = true
		default:
			p.invalid(fmt.Sprintf("spec.families[%d]", i), "%q is neither IPv4 nor IPv6", family)
		}
	}
}

func (p *problems) extendedNextHop(peer *Peer, spec *millracev1beta1.LBPeerSpec) {
	peer.ExtendedNextHop = spec.ExtendedNextHop
	switch {
	case !spec.ExtendedNextHop:
	case !peer.IPv4:
		p.invalid("spec.extendedNextHop", "applies to IPv4 routes: add IPv4 to spec.families")
	case peer.isFamily(millracev1beta1.FamilyIPv4):
		p.invalid("spec.extendedNextHop", "requires an IPv6 session")
	}
}

func (p *problems) times(session *Session, spec *millracev1beta1.LBPeerSpec) {
	session.HoldTime = p.duration("spec.holdTime", spec.HoldTime, defaultHoldTime, 3*time.Second, longestTime)
	p.wholeSeconds("spec.holdTime", session.HoldTime)
	session.KeepaliveTime = session.HoldTime / 3
	if spec.KeepaliveTime != nil {
		session.KeepaliveTime = p.duration("spec.keepaliveTime", spec.KeepaliveTime, 0, time.Second, longestTime)
		if 3*session.KeepaliveTime > session.HoldTime {
			p.invalid("spec.keepaliveTime", "%s exceeds a third of holdTime, %s", session.KeepaliveTime, session.HoldTime)
		}
	}
	session.ConnectRetryTime = p.duration("spec.connectRetryTime", spec.ConnectRetryTime, defaultConnectRetryTime, time.Second, 600*time.Second)
	// These two times are not sent to the router and need not be whole seconds.
	session.KeepaliveTime = session.KeepaliveTime.Truncate(time.Second)
	session.ConnectRetryTime = session.ConnectRetryTime.Truncate(time.Second)

	restart := spec.GracefulRestart
	if restart == nil {
		restart = &millracev1beta1.GracefulRestart{}
	}
	if restart.Enabled == nil || *restart.Enabled {
		session.RestartTime = p.duration("spec.gracefulRestart.restartTime", restart.RestartTime, defaultRestartTime, time.Second, 4095*time.Second)
		p.wholeSeconds("spec.gracefulRestart.restartTime", session.RestartTime)
	}
}

func (p *problems) duration(field string, value *metav1.Duration, absent, lowest, highest time.Duration) time.Duration {
	if value == nil {
		return absent
	}
	if value.Duration < lowest || value.Duration > highest {
		p.invalid(field, "%s is not between %s and %s", value.Duration, lowest, highest)
	}
	return value.Duration
}

func (p *problems) wholeSeconds(field string, value time.Duration) {
	if value%time.Second != 0 {
		p.invalid(field, "%s must be whole seconds", value)
	}
}

// Peers returns the problems of LBPeers. If two specify the same router for the same nodes, the older one is
// used.
func Peers(objects []millracev1beta1.LBPeer) []Problem {
	ordered := slices.Clone(objects)
	slices.SortFunc(ordered, func(a, b millracev1beta1.LBPeer) int { return CompareAge(&a, &b) })
	type known struct {
		peer     Peer
		selector *metav1.LabelSelector
	}
	var found []Problem
	var used []known
	for i := range ordered {
		object := &ordered[i]
		peer, invalid := ParsePeer(object)
		if len(invalid) > 0 {
			found = append(found, invalid...)
			continue
		}
		// Different selectors are assumed to select different nodes; agents detect the exceptions.
		same := slices.IndexFunc(used, func(other known) bool {
			return sameRouters(&other.peer, &peer) && (object.Spec.NodeSelector == nil || other.selector == nil ||
				equality.Semantic.DeepEqual(object.Spec.NodeSelector, other.selector))
		})
		if same >= 0 {
			p := problems{object: Object{Kind: "LBPeer", Name: object.Name}}
			field, router := "spec.router.address", peer.Address.String()
			if peer.Gateway != "" {
				field, router = "spec.router.gateway", fmt.Sprintf("the %s gateway", peer.Gateway)
			} else if peer.Interface != "" {
				field, router = "spec.router.interface", fmt.Sprintf("the router on %s", peer.Interface)
			} else if peer.Range.IsValid() {
				field, router = "spec.router.range", fmt.Sprintf("%s or a part of it on", peer.Range)
			}
			p.invalid(field, "%s port %d belongs to the older LBPeer %q for the same nodes: this LBPeer is not used",
				router, peer.Port, used[same].peer.Name)
			found = append(found, p.found...)
			continue
		}
		for _, canary := range peer.Canaries {
			older := slices.IndexFunc(used, func(other known) bool { return slices.Contains(other.peer.Canaries, canary) })
			if older >= 0 {
				p := problems{object: Object{Kind: "LBPeer", Name: object.Name}}
				p.invalid("spec.canaries", "%s is already a canary of the older LBPeer %q: choose another address", canary, used[older].peer.Name)
				found = append(found, p.found...)
			}
		}
		used = append(used, known{peer, object.Spec.NodeSelector})
	}
	return found
}

// sameRouters reports whether two LBPeers have a router in common. A single router and a range do not
// conflict.
func sameRouters(a, b *Peer) bool {
	if a.Range.IsValid() || b.Range.IsValid() {
		return a.Range.IsValid() && b.Range.IsValid() && a.Range.Overlaps(b.Range)
	}
	return a.Socket() == b.Socket() && a.Gateway == b.Gateway && a.Interface == b.Interface
}

// Object returns the name of the LBPeer.
func (s *Session) Object() string { return cmp.Or(s.OfRange, s.Name) }

// External reports whether the router is in another autonomous system.
func (s *Session) External() bool { return s.ASN != s.LocalASN }

// Socket returns the address and port that the node connects to.
func (s *Session) Socket() netip.AddrPort { return netip.AddrPortFrom(s.Address, s.Port) }
