// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// defaultHoldTime is that of the API when spec.holdTime is absent.
const defaultHoldTime = 90 * time.Second

// Peers returns what is wrong with BGPPeers. Of two for the same router and
// the same nodes the older is used.
func Peers(objects []millracev1alpha1.BGPPeer) []Problem {
	ordered := slices.Clone(objects)
	slices.SortFunc(ordered, func(a, b millracev1alpha1.BGPPeer) int { return olderFirst(&a, &b) })
	var found []Problem
	var used []*millracev1alpha1.BGPPeer
	for i := range ordered {
		peer := &ordered[i]
		p := problems{object: Object{Kind: "BGPPeer", Name: peer.Name}}
		checkPeer(&p, &peer.Spec)
		for _, other := range used {
			if len(p.found) == 0 && sameSession(&peer.Spec, &other.Spec) {
				p.add(millracev1alpha1.ReasonInvalid, "spec.peerAddress",
					fmt.Sprintf("%s port %d has the older BGPPeer %q for the same nodes: this one is not used",
						peer.Spec.PeerAddress, peer.Spec.PeerPort, other.Name))
			}
		}
		if len(p.found) == 0 {
			used = append(used, peer)
		}
		found = append(found, p.found...)
	}
	return found
}

// sameSession says whether a node could have both peers. Different selectors
// are taken for different nodes.
func sameSession(a, b *millracev1alpha1.BGPPeerSpec) bool {
	addressA, errA := parseAddress(a.PeerAddress)
	addressB, errB := parseAddress(b.PeerAddress)
	if errA != nil || errB != nil || addressA != addressB || a.PeerPort != b.PeerPort {
		return false
	}
	return a.NodeSelector == nil || b.NodeSelector == nil || equality.Semantic.DeepEqual(a.NodeSelector, b.NodeSelector)
}

func checkPeer(p *problems, spec *millracev1alpha1.BGPPeerSpec) {
	invalid := func(field, format string, arguments ...any) {
		p.add(millracev1alpha1.ReasonInvalid, field, fmt.Sprintf(format, arguments...))
	}
	if address, err := parseAddress(spec.PeerAddress); err != nil {
		invalid("spec.peerAddress", "%v", err)
	} else if address.IsUnspecified() || address.IsMulticast() || address == broadcast {
		invalid("spec.peerAddress", "%s is not the address of a router", address)
	}
	checkASN(p, "spec.peerASN", spec.PeerASN)
	checkASN(p, "spec.localASN", spec.LocalASN)
	if spec.PeerPort < 0 || spec.PeerPort > 65535 {
		invalid("spec.peerPort", "%d is not a TCP port (1 to 65535)", spec.PeerPort)
	}
	if _, err := selector(spec.NodeSelector); err != nil {
		invalid("spec.nodeSelector", "%v", err)
	}
	for i, family := range spec.Families {
		if family != millracev1alpha1.FamilyIPv4 && family != millracev1alpha1.FamilyIPv6 {
			invalid(fmt.Sprintf("spec.families[%d]", i), "%q is neither IPv4 nor IPv6", family)
		}
	}
	checkTimers(p, spec)
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func checkASN(p *problems, field string, asn int64) {
	if asn < 1 || asn > 4294967295 {
		p.add(millracev1alpha1.ReasonInvalid, field, fmt.Sprintf("%d is not an autonomous system number (1 to 4294967295)", asn))
	}
}

func checkTimers(p *problems, spec *millracev1alpha1.BGPPeerSpec) {
	hold := defaultHoldTime
	if spec.HoldTime != nil {
		hold = spec.HoldTime.Duration
	}
	if hold < 3*time.Second || hold > 65535*time.Second || hold%time.Second != 0 {
		p.add(millracev1alpha1.ReasonInvalid, "spec.holdTime", fmt.Sprintf("%s must be whole seconds from 3s to 65535s", hold))
	}
	if spec.KeepaliveTime != nil && (spec.KeepaliveTime.Duration < time.Second || 3*spec.KeepaliveTime.Duration > hold) {
		p.add(millracev1alpha1.ReasonInvalid, "spec.keepaliveTime",
			fmt.Sprintf("%s must be at least 1s and at most a third of holdTime (%s)", spec.KeepaliveTime.Duration, hold))
	}
	if restart := spec.GracefulRestart; restart != nil && restart.RestartTime != nil {
		keep := restart.RestartTime.Duration
		if keep < time.Second || keep > 4095*time.Second || keep%time.Second != 0 {
			p.add(millracev1alpha1.ReasonInvalid, "spec.gracefulRestart.restartTime",
				fmt.Sprintf("%s must be whole seconds from 1s to 4095s", keep))
		}
	}
}

// Advertisements returns what is wrong with BGPAdvertisements, references to
// pools and peers that do not exist included.
func Advertisements(
	objects []millracev1alpha1.BGPAdvertisement,
	pools []millracev1alpha1.IPPool,
	peers []millracev1alpha1.BGPPeer,
) []Problem {
	poolNames, peerNames := sets.New[string](), sets.New[string]()
	for i := range pools {
		poolNames.Insert(pools[i].Name)
	}
	for i := range peers {
		peerNames.Insert(peers[i].Name)
	}
	var found []Problem
	for i := range objects {
		spec := &objects[i].Spec
		p := problems{object: Object{Kind: "BGPAdvertisement", Name: objects[i].Name}}
		checkReferences(&p, "spec.pools", "IPPool", spec.Pools, poolNames)
		checkReferences(&p, "spec.peers", "BGPPeer", spec.Peers, peerNames)
		checkAdvertisement(&p, spec)
		found = append(found, p.found...)
	}
	return found
}

func checkReferences(p *problems, field, kind string, names []string, existing sets.Set[string]) {
	for i, name := range names {
		if !existing.Has(name) {
			p.add(millracev1alpha1.ReasonInvalid, fmt.Sprintf("%s[%d]", field, i), fmt.Sprintf("%s %q does not exist", kind, name))
		}
	}
}

func checkAdvertisement(p *problems, spec *millracev1alpha1.BGPAdvertisementSpec) {
	if _, err := selector(spec.ServiceSelector); err != nil {
		p.add(millracev1alpha1.ReasonInvalid, "spec.serviceSelector", err.Error())
	}
	if _, err := selector(spec.NodeSelector); err != nil {
		p.add(millracev1alpha1.ReasonInvalid, "spec.nodeSelector", err.Error())
	}
	for i, community := range spec.Communities {
		if message := checkCommunity(community); message != "" {
			p.add(millracev1alpha1.ReasonInvalid, fmt.Sprintf("spec.communities[%d]", i), message)
		}
	}
	if preference := spec.LocalPreference; preference != nil && (*preference < 0 || *preference > 4294967295) {
		p.add(millracev1alpha1.ReasonInvalid, "spec.localPreference", fmt.Sprintf("%d must be from 0 to 4294967295", *preference))
	}
}

// checkCommunity checks a community "a:b" of two 16-bit numbers (RFC 1997) or
// a large one "a:b:c" of three 32-bit numbers (RFC 8092). It returns "" for a
// valid one.
func checkCommunity(text string) string {
	parts := strings.Split(text, ":")
	width := 16
	switch len(parts) {
	case 2:
	case 3:
		width = 32
	default:
		return fmt.Sprintf("%q is neither a community (64512:100) nor a large community (64512:1:100)", text)
	}
	for _, part := range parts {
		if _, err := strconv.ParseUint(part, 10, width); err != nil {
			return fmt.Sprintf("%q: %q must be a number from 0 to %d", text, part, uint64(1)<<width-1)
		}
	}
	return ""
}
