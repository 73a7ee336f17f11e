// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// Defaults of BGPPeer, as in its schema.
const (
	defaultPeerPort         = 179
	defaultHoldTime         = 90 * time.Second
	defaultConnectRetryTime = 5 * time.Second
	defaultRestartTime      = 120 * time.Second
)

// longestTime is the most that 16 bits of seconds hold (RFC 4271, section 4.2).
const longestTime = math.MaxUint16 * time.Second

func (b *builder) nodeLabels() labels.Set {
	if b.snapshot.Node == nil {
		return nil
	}
	return b.snapshot.Node.Labels
}

// isForThisNode tells whether an object's selector matches this node's labels.
func (b *builder) isForThisNode(reference ObjectReference, selector *metav1.LabelSelector) bool {
	selected, err := selects(selector, b.nodeLabels())
	if err != nil {
		b.invalid(reference, fmt.Errorf("spec.nodeSelector: %w", err))
	}
	return err == nil && selected
}

// buildPeers fills the peers that select this node.
func (b *builder) buildPeers() {
	taken := map[netip.AddrPort]string{}
	for _, object := range oldestFirst(b.snapshot.Peers) {
		reference := ObjectReference{Kind: "BGPPeer", Name: object.Name}
		if !b.isForThisNode(reference, object.Spec.NodeSelector) {
			continue
		}
		peer, err := newPeer(object)
		if err != nil {
			b.invalid(reference, err)
			continue
		}
		socket := netip.AddrPortFrom(peer.Address, peer.Port)
		if older, found := taken[socket]; found {
			b.problem(reference, ReasonDuplicate,
				"spec.peerAddress: %s is already the peer of this node by BGPPeer %s, which is older", socket, older)
			continue
		}
		taken[socket] = peer.Name
		b.model.Peers = append(b.model.Peers, peer)
	}
	slices.SortFunc(b.model.Peers, func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
}

// newPeer reads a BGPPeer. Errors name the field that is wrong.
func newPeer(object *millracev1alpha1.BGPPeer) (Peer, error) {
	spec := &object.Spec
	peer := Peer{Name: object.Name}
	address, err := parsePeerAddress(spec.PeerAddress)
	if err != nil {
		return Peer{}, fmt.Errorf("spec.peerAddress: %w", err)
	}
	peer.Address = address
	port, portErr := within("spec.peerPort", int64(cmp.Or(spec.PeerPort, defaultPeerPort)), 1, math.MaxUint16)
	asn, asnErr := within("spec.peerASN", spec.PeerASN, 1, math.MaxUint32)
	localASN, localErr := within("spec.localASN", spec.LocalASN, 1, math.MaxUint32)
	ttl, ttlErr := within("spec.ebgpMultiHop", int64(deref(spec.EBGPMultiHop, 1)), 1, math.MaxUint8)
	if err := cmp.Or(portErr, asnErr, localErr, ttlErr); err != nil {
		return Peer{}, err
	}
	peer.Port, peer.ASN, peer.LocalASN = uint16(port), uint32(asn), uint32(localASN)
	if ttl > 1 {
		peer.MultiHopTTL = uint8(ttl)
	}
	if err := peer.setFamilies(spec.Families); err != nil {
		return Peer{}, fmt.Errorf("spec.families: %w", err)
	}
	if err := peer.setTimes(spec); err != nil {
		return Peer{}, err
	}
	return peer, nil
}

// parsePeerAddress is parseAddress, except that a router on the node itself,
// at a loopback address, is a peer as well.
func parsePeerAddress(text string) (netip.Addr, error) {
	if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" && address.Unmap().IsLoopback() {
		return address.Unmap(), nil
	}
	return parseAddress(text)
}

func within(field string, value, lowest, highest int64) (int64, error) {
	if value < lowest || value > highest {
		return 0, fmt.Errorf("%s: %d is not between %d and %d", field, value, lowest, highest)
	}
	return value, nil
}

func (p *Peer) setFamilies(families []millracev1alpha1.AddressFamily) error {
	if len(families) == 0 {
		p.IPv4, p.IPv6 = p.Address.Is4(), p.Address.Is6()
	}
	for _, family := range families {
		switch family {
		case millracev1alpha1.FamilyIPv4:
			p.IPv4 = true
		case millracev1alpha1.FamilyIPv6:
			p.IPv6 = true
		default:
			return fmt.Errorf("%q is neither IPv4 nor IPv6", family)
		}
	}
	return nil
}

func (p *Peer) setTimes(spec *millracev1alpha1.BGPPeerSpec) error {
	var holdErr, keepaliveErr, retryErr, restartErr error
	p.HoldTime, holdErr = seconds("spec.holdTime", spec.HoldTime, defaultHoldTime, 3*time.Second, longestTime)
	p.KeepaliveTime, keepaliveErr = seconds("spec.keepaliveTime", truncated(spec.KeepaliveTime),
		(p.HoldTime / 3).Truncate(time.Second), time.Second, longestTime)
	p.ConnectRetryTime, retryErr = seconds("spec.connectRetryTime", truncated(spec.ConnectRetryTime),
		defaultConnectRetryTime, time.Second, 600*time.Second)
	restart := deref(spec.GracefulRestart, millracev1alpha1.GracefulRestart{})
	if deref(restart.Enabled, true) {
		p.RestartTime, restartErr = seconds("spec.gracefulRestart.restartTime", restart.RestartTime,
			defaultRestartTime, time.Second, 4095*time.Second)
	}
	if err := cmp.Or(holdErr, keepaliveErr, retryErr, restartErr); err != nil {
		return err
	}
	if 3*p.KeepaliveTime > p.HoldTime {
		return fmt.Errorf("spec.holdTime: %s is less than three times keepaliveTime, %s", p.HoldTime, p.KeepaliveTime)
	}
	return nil
}

// seconds reads a duration that must be whole seconds within the bounds.
func seconds(field string, value *metav1.Duration, absent, lowest, highest time.Duration) (time.Duration, error) {
	if value == nil {
		return absent, nil
	}
	if value.Duration%time.Second != 0 {
		return 0, fmt.Errorf("%s: %s is not in whole seconds", field, value.Duration)
	}
	if value.Duration < lowest || value.Duration > highest {
		return 0, fmt.Errorf("%s: %s is not between %s and %s", field, value.Duration, lowest, highest)
	}
	return value.Duration, nil
}

// truncated drops the fraction of a time that only this node goes by; what the
// peer is told (hold time, restart time) has no fraction on the wire.
func truncated(value *metav1.Duration) *metav1.Duration {
	if value == nil {
		return nil
	}
	return &metav1.Duration{Duration: value.Truncate(time.Second)}
}

// buildAdvertisements fills the advertisements that select this node.
func (b *builder) buildAdvertisements() {
	for _, object := range oldestFirst(b.snapshot.Advertisements) {
		reference := ObjectReference{Kind: "BGPAdvertisement", Name: object.Name}
		if !b.isForThisNode(reference, object.Spec.NodeSelector) {
			continue
		}
		advertisement, err := newAdvertisement(object)
		if err != nil {
			b.invalid(reference, err)
			continue
		}
		b.model.Advertisements = append(b.model.Advertisements, advertisement)
	}
	slices.SortFunc(b.model.Advertisements, func(a, b Advertisement) int { return cmp.Compare(a.Name, b.Name) })
}

// newAdvertisement reads a BGPAdvertisement. Errors name the field that is
// wrong.
func newAdvertisement(object *millracev1alpha1.BGPAdvertisement) (Advertisement, error) {
	spec := &object.Spec
	advertisement := Advertisement{
		Name:  object.Name,
		Pools: slices.Sorted(slices.Values(spec.Pools)),
		Peers: slices.Sorted(slices.Values(spec.Peers)),
	}
	if spec.ServiceSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(spec.ServiceSelector)
		if err != nil {
			return Advertisement{}, fmt.Errorf("spec.serviceSelector: %w", err)
		}
		advertisement.Selects = func(set map[string]string) bool { return selector.Matches(labels.Set(set)) }
	}
	for i, text := range spec.Communities {
		if err := advertisement.addCommunity(text); err != nil {
			return Advertisement{}, fmt.Errorf("spec.communities[%d]: %w", i, err)
		}
	}
	advertisement.sortCommunities()
	if spec.LocalPreference != nil {
		value, err := within("spec.localPreference", *spec.LocalPreference, 0, math.MaxUint32)
		if err != nil {
			return Advertisement{}, err
		}
		preference := uint32(value)
		advertisement.LocalPreference = &preference
	}
	return advertisement, nil
}

func (a *Advertisement) sortCommunities() {
	slices.Sort(a.Communities)
	a.Communities = slices.Compact(a.Communities)
	slices.SortFunc(a.LargeCommunities, func(a, b [3]uint32) int { return slices.Compare(a[:], b[:]) })
	a.LargeCommunities = slices.Compact(a.LargeCommunities)
}

// addCommunity adds "a:b", two numbers of 16 bits (RFC 1997), or "a:b:c", three
// of 32 bits (RFC 8092).
func (a *Advertisement) addCommunity(text string) error {
	parts := strings.Split(text, ":")
	size := 32
	if len(parts) == 2 {
		size = 16
	}
	var numbers [3]uint32
	if len(parts) < 2 || len(parts) > 3 {
		return fmt.Errorf("%q is neither a community a:b nor a large community a:b:c", text)
	}
	for i, part := range parts {
		number, err := strconv.ParseUint(part, 10, size)
		if err != nil {
			return fmt.Errorf("%q: %q is not a number of %d bits", text, part, size)
		}
		numbers[i] = uint32(number)
	}
	if len(parts) == 2 {
		a.Communities = append(a.Communities, numbers[0]<<16|numbers[1])
	} else {
		a.LargeCommunities = append(a.LargeCommunities, numbers)
	}
	return nil
}
