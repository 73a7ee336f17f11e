// SPDX-License-Identifier: Apache-2.0

package review

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Peer returns warnings about a valid LBPeer: addresses of other objects, and settings without an effect.
func Peer(object *millracev1beta1.LBPeer, state *State) []desired.Problem {
	peer, invalid := desired.ParsePeer(object)
	if len(invalid) > 0 {
		return nil
	}
	w := warnings{object: desired.Object{Kind: "LBPeer", Name: object.Name}, state: state}
	if !state.anyNode(peer.Nodes) {
		w.warn(ReasonNoMatch, "spec.nodeSelector", "selects no Node, so there is no session")
	}
	w.router(&peer)
	w.source(&peer)
	for _, canary := range peer.Canaries {
		w.address("spec.canaries", netipx.IPRangeFrom(canary, canary), "choose an address that nothing else has")
	}
	if peer.MultiHopTTL > 1 && !peer.External() {
		w.warn(ReasonNoEffect, "spec.multihopTTL", "has no use in internal sessions: packets have a TTL of 64 without it, and %d with it: "+
			"remove it, or set bfd.multihop for BFD", peer.MultiHopTTL)
	}
	w.system("spec.peerASN", object.Spec.PeerASN)
	w.system("spec.localASN", object.Spec.LocalASN)
	w.fraction("spec.keepaliveTime", object.Spec.KeepaliveTime)
	w.fraction("spec.connectRetryTime", object.Spec.ConnectRetryTime)
	w.interfaces("spec.router.interface", cmp.Or(peer.Interface, peer.Address.Zone()))
	w.pattern("spec.sourceInterface", peer.SourceInterface)
	return w.found
}

// system warns about the last AS numbers of two and four octets.
func (w *warnings) system(field string, asn int64) {
	if asn == math.MaxUint16 || asn == math.MaxUint32 {
		w.warn(millracev1beta1.ReasonInvalid, field, "%d is reserved (RFC 7300), and routers can reject it: "+
			"use a number from 64512 to 65534 or from 4200000000 to 4294967294", asn)
	}
}

func (w *warnings) fraction(field string, value *metav1.Duration) {
	if value != nil && value.Duration%time.Second != 0 {
		w.warn(ReasonNoEffect, field, "%s is rounded down to %s: write whole seconds", value.Duration, value.Truncate(time.Second))
	}
}

// router accepts loopback addresses, and addresses of nodes without a session with the router.
func (w *warnings) router(peer *desired.Peer) {
	switch {
	case peer.Range.IsValid():
		w.pools("spec.router.range", netipx.RangeOfPrefix(peer.Range), "leave them out, or add the routers to spec.reserved of the pool")
	case peer.Address.IsValid() && !peer.Address.IsLoopback():
		const field = "spec.router.address"
		address := peer.Address.WithZone("")
		for i := range w.state.Nodes {
			node := &w.state.Nodes[i]
			if hasAddress(node, address) && peer.Nodes.Matches(labels.Set(node.Labels)) {
				w.warn(millracev1beta1.ReasonOccupied, field, "%s is the address of Node %q, which cannot have a session with itself: "+
					"write the address of the router, or exclude the node by spec.nodeSelector", address, node.Name)
				return
			}
		}
		w.networks(field, netipx.IPRangeFrom(address, address), "write the address of the router")
		w.pools(field, netipx.IPRangeFrom(address, address), "write the address of the router, or add it to spec.reserved of the pool")
	}
}

func (w *warnings) source(peer *desired.Peer) {
	const field = "spec.sourceAddress"
	if !peer.Source.IsValid() {
		return
	}
	w.pools(field, netipx.IPRangeFrom(peer.Source, peer.Source), "write an address of the node")
	selected, owner := 0, ""
	for i := range w.state.Nodes {
		node := &w.state.Nodes[i]
		matches := peer.Nodes.Matches(labels.Set(node.Labels))
		if matches {
			selected++
		}
		if hasAddress(node, peer.Source) && !matches {
			owner = node.Name
		}
	}
	switch {
	case owner != "":
		w.warn(millracev1beta1.ReasonOccupied, field, "%s is the address of Node %q, which spec.nodeSelector does not select", peer.Source, owner)
	case selected > 1:
		w.warn(ReasonNoEffect, field, "only one of the %d selected Nodes can have %s, so the others have no session: "+
			"select this Node by spec.nodeSelector, or use spec.sourceInterface", selected, peer.Source)
	}
}

// warnings collects the warnings about one object.
type warnings struct {
	object desired.Object
	state  *State
	found  []desired.Problem
}

func (w *warnings) warn(reason, field, format string, arguments ...any) {
	w.found = append(w.found, desired.Problem{
		Object: w.object, Reason: reason, Field: field, Message: field + ": " + fmt.Sprintf(format, arguments...),
	})
}

// address warns if nodes, routers, networks or pools have an address.
func (w *warnings) address(field string, r netipx.IPRange, advice string) {
	for _, occupied := range w.state.Occupied {
		if occupied.Host && occupied.Range.Overlaps(r) {
			w.warn(millracev1beta1.ReasonOccupied, field, "%s is the address of %s: %s", r.From(), occupied.By, advice)
			return
		}
	}
	w.networks(field, r, advice)
	if vip, is := table(w.state).Get(r.From()); is && len(vip.Claims) > 0 {
		w.warn(millracev1beta1.ReasonOccupied, field, "%s is the VIP of Service %s: %s", r.From(), vip.Claims[0].Owner, advice)
	}
}

func (w *warnings) networks(field string, r netipx.IPRange, advice string) {
	for _, occupied := range w.state.Occupied {
		if !occupied.Host && occupied.Range.From() != occupied.Range.To() && occupied.Range.Overlaps(r) {
			w.warn(millracev1beta1.ReasonOccupied, field, "%s belongs to %s: %s", r.From(), occupied.By, advice)
			return
		}
	}
}

func (w *warnings) pools(field string, r netipx.IPRange, advice string) {
	for i := range w.state.Pools {
		pool, invalid := desired.ParsePool(&w.state.Pools[i])
		if len(invalid) == 0 && pool.Addresses.OverlapsRange(r) {
			text := r.From().String() + " is an address"
			if r.From() != r.To() {
				text = "it has addresses"
			}
			w.warn(millracev1beta1.ReasonOccupied, field, "%s of VIPPool %q, which Services can get: %s", text, pool.Name, advice)
			return
		}
	}
}

// interfaces warns about the name of an uplink that no node has.
func (w *warnings) interfaces(field, name string) {
	if name != "" && !w.pattern(field, name) && len(w.state.Interfaces) > 0 && !slices.Contains(w.state.Interfaces, name) {
		w.warn(ReasonNoMatch, field, "no node has reported an uplink %q: the nodes have %s; without this interface there is no session", name, firstNames(w.state.Interfaces))
	}
}

// pattern warns about the name of an interface with characters of patterns.
func (w *warnings) pattern(field, name string) bool {
	if !strings.ContainsAny(name, `*?[]{}()|^$\,`) {
		return false
	}
	w.warn(ReasonNoMatch, field, "%q is the name of an interface, not a pattern: list each interface by its name, such as eth0", name)
	return true
}

func firstNames(all []string) string {
	names := slices.Compact(slices.Sorted(slices.Values(all)))
	if more := len(names) - namespacesInWarnings; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:namespacesInWarnings], ", "), more)
	}
	return strings.Join(names, ", ")
}

func hasAddress(node *corev1.Node, address netip.Addr) bool {
	return slices.ContainsFunc(desired.OccupiedByNode(node), func(occupied desired.Occupied) bool {
		return occupied.Host && occupied.Range.From() == address
	})
}
