// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"math"

	"k8s.io/apimachinery/pkg/api/equality"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// RouterFields are the fields of an LBPeer that say where the router is, as its author called them.
type RouterFields struct{ Address, Interface, Gateway, Range, MaxPeers string }

var (
	routerFields = RouterFields{
		"spec.router.address", "spec.router.interface", "spec.router.gateway", "spec.router.range", "spec.router.maxPeers",
	}
	previousRouterFields = RouterFields{
		"spec.peerAddress", "spec.peerInterface", "spec.peerGateway", "spec.peerRange", "spec.maxPeers",
	}
)

// readRouter returns where the router of an LBPeer is, by the names that the LBPeer uses. It is the
// only place that reads the previous names.
func readRouter(spec *millracev1beta1.LBPeerSpec) (millracev1beta1.Router, RouterFields) {
	previous := previousRouter(spec)
	switch {
	case spec.Router != nil:
		return *spec.Router, routerFields
	case previous != millracev1beta1.Router{}:
		return previous, previousRouterFields
	}
	return previous, routerFields
}

func previousRouter(spec *millracev1beta1.LBPeerSpec) millracev1beta1.Router {
	return millracev1beta1.Router{
		Address: spec.PeerAddress, Interface: spec.PeerInterface, Gateway: spec.PeerGateway,
		Range: spec.PeerRange, MaxPeers: spec.MaxPeers,
	}
}

// routerOf is readRouter, and holds that the names do not contradict each other.
func (p *problems) routerOf(spec *millracev1beta1.LBPeerSpec) (millracev1beta1.Router, RouterFields) {
	router, fields := readRouter(spec)
	previous := previousRouter(spec)
	if spec.Router != nil && previous != (millracev1beta1.Router{}) && !equality.Semantic.DeepEqual(previous, router) {
		p.invalid("spec.router", "and its previous names peerAddress, peerGateway, peerRange, maxPeers and peerInterface differ: leave the previous names out")
	}
	return router, fields
}

// multihopTTL returns the TTL of a session's packets, and how the LBPeer calls it.
func multihopTTL(spec *millracev1beta1.LBPeerSpec) (ttl *int32, field string) {
	if spec.MultihopTTL != nil {
		return spec.MultihopTTL, "spec.multihopTTL"
	}
	return spec.EBGPMultiHop, "spec.ebgpMultiHop"
}

// multihop reads how far away the router is.
func (p *problems) multihop(session *Session, spec *millracev1beta1.LBPeerSpec) {
	value, field := multihopTTL(spec)
	if value == nil {
		return
	}
	if previous := spec.EBGPMultiHop; previous != nil && *previous != *value {
		p.invalid(field, "and its previous name ebgpMultiHop differ: leave the previous name out")
	}
	if ttl := p.within(field, int64(*value), 1, math.MaxUint8); ttl > 1 {
		session.MultiHopTTL = uint8(ttl)
	}
}
