// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
)

// Speaker manages BGP sessions.
type Speaker interface {
	Sessions() []bgp.Session
	Routes() announce.Routes
}

// Peers returns the BGP sessions, sorted by peer.
func (s *Server) Peers() *consoleapi.BGP {
	line := &consoleapi.BGP{Node: s.Directory().Node}
	bfd := map[string]*millracev1beta1.BFDStatus{}
	if decisions := s.Decisions(); decisions != nil {
		for _, session := range decisions.Sessions {
			bfd[session.Peer] = session.BFD
		}
	}
	for _, session := range s.Speaker.Sessions() {
		line.Peers = append(line.Peers, peerOf(session, bfd[session.Peer]))
	}
	return line
}

func peerOf(session bgp.Session, bfd *millracev1beta1.BFDStatus) consoleapi.BGPPeer {
	peer := consoleapi.BGPPeer{
		Peer: session.Peer, Address: session.Address, LocalAddress: session.Local,
		State: string(session.State), Since: session.Since.UTC(),
		LastError: cmp.Or(session.Message, session.LastError), LastErrorTime: session.LastErrorTime.UTC(),
		Flaps: session.Flaps, Families: session.Families, RoutesSent: session.Routes,
		UpdatesSent: session.UpdatesSent, UpdatesReceived: session.UpdatesReceived, Due: session.Due.UTC(),
	}
	if bfd != nil {
		peer.BFD, peer.BFDMessage = string(bfd.State), bfd.Message
	}
	return peer
}

func (s *Server) routes(conn net.Conn) error {
	withheld := map[string][]millracev1beta1.AddressFamily{}
	established := map[string]bool{}
	for _, session := range s.Speaker.Sessions() {
		established[session.Peer] = session.State == millracev1beta1.SessionEstablished
		withheld[session.Peer] = session.Withheld
	}
	line := &consoleapi.BGP{Node: s.Directory().Node}
	for peer, routes := range s.Speaker.Routes() {
		for i := range routes {
			announced := established[peer] && !slices.Contains(withheld[peer], familyOf(routes[i].Prefix))
			line.Routes = append(line.Routes, routeOf(peer, &routes[i], announced))
		}
	}
	slices.SortFunc(line.Routes, func(a, b consoleapi.BGPRoute) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), cmp.Compare(a.Peer, b.Peer))
	})
	return write(conn, consoleapi.Line{BGP: line})
}

func familyOf(prefix netip.Prefix) millracev1beta1.AddressFamily {
	if prefix.Addr().Is4() {
		return millracev1beta1.FamilyIPv4
	}
	return millracev1beta1.FamilyIPv6
}

func routeOf(peer string, route *announce.Route, established bool) consoleapi.BGPRoute {
	out := consoleapi.BGPRoute{
		Prefix: route.Prefix, Peer: peer, NextHop: route.NextHop, Established: established,
		MED: route.MED, LocalPreference: route.LocalPreference, Prepend: route.Prepend, Weight: route.Weight,
	}
	for _, c := range route.Communities {
		out.Communities = append(out.Communities, fmt.Sprintf("%d:%d", c>>16, c&0xffff))
	}
	for _, c := range route.LargeCommunities {
		out.Communities = append(out.Communities, fmt.Sprintf("%d:%d:%d", c[0], c[1], c[2]))
	}
	for _, c := range route.ExtendedCommunities {
		kind := "rt"
		if c.Subtype == desired.SiteOfOrigin {
			kind = "soo"
		}
		out.Communities = append(out.Communities, fmt.Sprintf("%s:%d:%d", kind, c.ASN, c.Value))
	}
	return out
}
