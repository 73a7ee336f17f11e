// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/go-logr/logr"
	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/server"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

var (
	ipv4Unicast = &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	ipv6Unicast = &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}
)

// speaker is a GoBGP server with at most one peer, because GoBGP has one routing table per server and peers
// differ in their routes, attributes and local AS number.
type speaker struct{ server *server.BgpServer }

func newSpeaker(logger logr.Logger) *speaker {
	s := &speaker{server: server.NewBgpServer(server.LoggerOption(&logAdapter{logger: logger}))}
	go s.server.Serve()
	return s
}

func (s *speaker) start(asn uint32, routerID netip.Addr) error {
	ctx := context.Background()
	err := s.server.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn:        asn,
		RouterId:   routerID.String(),
		ListenPort: -1,
	}})
	if err != nil {
		return fmt.Errorf("start BGP as AS%d with identifier %s: %w", asn, routerID, err)
	}
	// Only local routes are imported; a peer's routes are neither used nor propagated.
	own := &api.Policy{Name: "own", Statements: []*api.Statement{{
		Name:       "own",
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ACCEPT},
	}}}
	if err := s.server.AddPolicy(ctx, &api.AddPolicyRequest{Policy: own}); err != nil {
		return fmt.Errorf("define the import policy: %w", err)
	}
	err = s.server.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Name:          "global",
		Direction:     api.PolicyDirection_IMPORT,
		Policies:      []*api.Policy{own},
		DefaultAction: api.RouteAction_REJECT,
	}})
	if err != nil {
		return fmt.Errorf("set the import policy: %w", err)
	}
	return nil
}

func (s *speaker) stop() {
	// StopBgp fails only for a nil request.
	_ = s.server.StopBgp(context.Background(), &api.StopBgpRequest{})
}

func (s *speaker) watch(ctx context.Context, handle func(millracev1beta1.SessionState)) error {
	request := &api.WatchEventRequest{Peer: &api.WatchEventRequest_Peer{}}
	err := s.server.WatchEvent(ctx, request, func(event *api.WatchEventResponse) {
		if peer := event.GetPeer(); peer.GetType() == api.WatchEventResponse_PeerEvent_STATE {
			handle(sessionState(peer.GetPeer().GetState().GetSessionState()))
		}
	})
	if err != nil {
		return fmt.Errorf("watch the session: %w", err)
	}
	return nil
}

func (s *speaker) addPeer(peer model.Peer, at netip.AddrPort, restarting bool) error {
	request := &api.AddPeerRequest{Peer: neighbor(peer, at, restarting)}
	if err := s.server.AddPeer(context.Background(), request); err != nil {
		return fmt.Errorf("open a session: %w", err)
	}
	return nil
}

func (s *speaker) deletePeer(at netip.AddrPort) error {
	request := &api.DeletePeerRequest{Address: at.Addr().String()}
	if err := s.server.DeletePeer(context.Background(), request); err != nil {
		return fmt.Errorf("close the session: %w", err)
	}
	return nil
}

func (s *speaker) addRoute(route announce.Route, peer model.Peer) error {
	path, err := path(route, peer)
	if err != nil {
		return fmt.Errorf("route %s: %w", route.Prefix, err)
	}
	if _, err := s.server.AddPath(context.Background(), &api.AddPathRequest{Path: path}); err != nil {
		return fmt.Errorf("announce %s: %w", route.Prefix, err)
	}
	return nil
}

func (s *speaker) deleteRoute(route announce.Route) error {
	path, err := path(route, model.Peer{})
	if err != nil {
		return fmt.Errorf("route %s: %w", route.Prefix, err)
	}
	if err := s.server.DeletePath(context.Background(), &api.DeletePathRequest{Path: path}); err != nil {
		return fmt.Errorf("withdraw %s: %w", route.Prefix, err)
	}
	return nil
}

// neighbor configures the transport's address instead of the router's.
func neighbor(peer model.Peer, at netip.AddrPort, restarting bool) *api.Peer {
	graceful := peer.RestartTime > 0
	var families []*api.AfiSafi
	addFamily := func(family *api.Family) {
		families = append(families, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: family, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: graceful}},
		})
	}
	if peer.IPv4 {
		addFamily(ipv4Unicast)
	}
	if peer.IPv6 {
		addFamily(ipv6Unicast)
	}
	return &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: at.Addr().String(),
			PeerAsn:         peer.ASN,
			LocalAsn:        peer.LocalASN,
		},
		Transport: &api.Transport{RemotePort: uint32(at.Port())},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime:          uint64(peer.HoldTime.Seconds()),
			KeepaliveInterval: uint64(peer.KeepaliveTime.Seconds()),
			ConnectRetry:      1,
		}},
		GracefulRestart: gracefulRestart(peer, restarting),
		AfiSafis:        families,
	}
}

func sessionState(state api.PeerState_SessionState) millracev1beta1.SessionState {
	switch state {
	case api.PeerState_CONNECT:
		return millracev1beta1.SessionConnect
	case api.PeerState_ACTIVE:
		return millracev1beta1.SessionActive
	case api.PeerState_OPENSENT:
		return millracev1beta1.SessionOpenSent
	case api.PeerState_OPENCONFIRM:
		return millracev1beta1.SessionOpenConfirm
	case api.PeerState_ESTABLISHED:
		return millracev1beta1.SessionEstablished
	default:
		return millracev1beta1.SessionIdle
	}
}
