// SPDX-License-Identifier: Apache-2.0

package kubevip

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/migration"
)

const (
	defaultASN           = 65000
	defaultHoldTime      = 30
	defaultKeepaliveTime = 10
	multihopTTL          = 50
	bgpPort              = 179
)

type router struct {
	address, on                  string
	asn, password, multihop      string
	port, nextHops, bfd, trailer string
}

// sessions adds LBPeers, and a VIPAdvertisement to all of them.
func (c *converter) sessions(name string, env *environment, nodes *metav1.LabelSelector, note noteFunc) {
	var peers []string
	for _, router := range env.routers() {
		to, err := router.peer(env, note)
		if err != nil {
			note("%v: it is left out", err)
			continue
		}
		to.Spec.NodeSelector = nodes
		peers = append(peers, to.Name)
		if slices.ContainsFunc(c.result.Peers, func(p millracev1beta1.LBPeer) bool { return p.Name == to.Name }) {
			note("the router %s is a duplicate: the first one applies", router.address)
			continue
		}
		c.result.Peers = append(c.result.Peers, to)
	}
	if len(peers) == 0 {
		note("bgp_enable has no valid router")
		return
	}
	to := migration.NewAdvertisement(migration.Name(name))
	to.Spec.Peers = slices.Compact(slices.Sorted(slices.Values(peers)))
	c.result.Advertisements = append(c.result.Advertisements, to)
}

// routers returns the routers of bgp_peers, and that of bgp_peeraddress.
func (e *environment) routers() (all []router) {
	for text := range strings.SplitSeq(e.values["bgp_peers"], ",") {
		if text = strings.TrimSpace(text); text != "" {
			all = append(all, parseRouter(text))
		}
	}
	if address := e.values["bgp_peeraddress"]; address != "" {
		all = append(all, router{
			address: address, asn: e.values["bgp_peeras"], password: e.values["bgp_peerpass"], multihop: e.values["bgp_multihop"],
		})
	}
	return all
}

// parseRouter parses ADDRESS:AS:PASSWORD:MULTIHOP:PORT:NEXTHOPS:BFD with [IPv6].
func parseRouter(text string) router {
	var r router
	if rest, ok := strings.CutPrefix(text, "unnumbered:"); ok {
		r.on, text, _ = strings.Cut(rest, ":")
	} else if rest, ok := strings.CutPrefix(text, "["); ok {
		r.address, text, _ = strings.Cut(rest, "]")
		text = strings.TrimPrefix(text, ":")
	} else {
		r.address, text, _ = strings.Cut(text, ":")
	}
	for _, part := range []*string{&r.asn, &r.password, &r.multihop, &r.port, &r.nextHops, &r.bfd} {
		*part, text, _ = strings.Cut(text, ":")
	}
	r.trailer = text
	return r
}

func (r *router) peer(env *environment, note noteFunc) (millracev1beta1.LBPeer, error) {
	to := migration.NewPeer(migration.Name("kube-vip", cmp.Or(r.address, r.on)))
	address, err := netip.ParseAddr(cmp.Or(r.address, "fe80::%"+r.on))
	if err != nil {
		return to, fmt.Errorf("the router's address %q is invalid", r.address)
	}
	asn, err := strconv.ParseInt(r.asn, 10, 64)
	if err != nil {
		return to, fmt.Errorf("router %s: the AS number %q is invalid", address, r.asn)
	}
	to.Spec.Router = millracev1beta1.Router{Address: address.WithZone("").String(), Interface: address.Zone()}
	if r.on != "" {
		to.Spec.Router.Address, to.Spec.ExtendedNextHop = "", true
		to.Spec.Families = []millracev1beta1.AddressFamily{millracev1beta1.FamilyIPv4, millracev1beta1.FamilyIPv6}
	}
	to.Spec.PeerASN, to.Spec.LocalASN = asn, number(env.values["bgp_as"], defaultASN)
	hold := number(env.values["bgp_hold_time"], defaultHoldTime)
	to.Spec.HoldTime = duration(hold, time.Second)
	if keepalive := number(env.values["bgp_keepalive_interval"], defaultKeepaliveTime); keepalive <= hold/3 {
		to.Spec.KeepaliveTime = duration(keepalive, time.Second)
	} else {
		note("bgp_keepalive_interval is more than a third of bgp_hold_time: reduced to a third")
	}
	if multihop, err := strconv.ParseBool(r.multihop); err == nil && multihop {
		hops := int32(multihopTTL)
		to.Spec.MultihopTTL = &hops
	}
	if port := number(r.port, bgpPort); port != bgpPort {
		to.Spec.PeerPort = int32(min(port, 1<<16))
	}
	if r.password != "" {
		to.Spec.PasswordSecretRef = &millracev1beta1.SecretReference{Name: to.Name}
		note("create a Secret %s in namespace %s with the password of router %s", to.Name, millracev1beta1.BGPNamespace, address)
	}
	to.Spec.BFD = r.bfdSession(note)
	r.families(env, &to.Spec, note)
	source(env, &to.Spec, address, note)
	return to, nil
}

func source(env *environment, to *millracev1beta1.LBPeerSpec, router netip.Addr, note noteFunc) {
	on, address := env.values["bgp_sourceif"], env.values["bgp_sourceip"]
	switch {
	case on != "" && on != "lo":
		to.SourceInterface = on
	case address == "" || router.IsLinkLocalUnicast():
	case strings.Contains(address, ":") == router.Is6():
		to.SourceAddress = address
	default:
		note("bgp_sourceip does not have the family of router %s", router)
	}
}

// families enables both families if MP-BGP is on; the other one's next hop is the node's own address.
func (r *router) families(env *environment, to *millracev1beta1.LBPeerSpec, note noteFunc) {
	mode := env.values["mpbgp_nexthop"]
	for option := range strings.SplitSeq(r.nextHops, ";") {
		if value, ok := strings.CutPrefix(option, "mpbgp_nexthop="); ok {
			mode = value
		}
	}
	if mode == "" {
		return
	}
	to.Families = []millracev1beta1.AddressFamily{millracev1beta1.FamilyIPv4, millracev1beta1.FamilyIPv6}
	note("mpbgp_nexthop %s: the next hop of the other family is the node's own address", mode)
}

// bfdSession parses ENABLED;RECEIVE;TRANSMIT;MULTIPLIER, in milliseconds.
func (r *router) bfdSession(note noteFunc) *millracev1beta1.BFD {
	parts := strings.Split(r.bfd, ";")
	enabled, err := strconv.ParseBool(parts[0])
	if r.bfd == "" || err != nil || !enabled {
		return nil
	}
	if len(parts) < 4 {
		note("the BFD settings %q of router %s are invalid: bfd has Millrace's default intervals", r.bfd, r.address)
		return &millracev1beta1.BFD{}
	}
	return &millracev1beta1.BFD{
		ReceiveInterval:  duration(number(parts[1], 300), time.Millisecond),
		TransmitInterval: duration(number(parts[2], 300), time.Millisecond),
		DetectMultiplier: int32(min(number(parts[3], 3), 1<<16)),
	}
}

// number parses text, and returns the default for 0 and invalid text.
func number(text string, standard int64) int64 {
	if value, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil && value != 0 {
		return value
	}
	return standard
}

func duration(value int64, unit time.Duration) *metav1.Duration {
	return &metav1.Duration{Duration: time.Duration(value) * unit}
}
