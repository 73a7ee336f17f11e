// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// deferralSeconds is the Selection_Deferral_Timer of a restarting session (RFC 4724, section 4.1). It is
// GoBGP's minimum, because our routes do not depend on the peer's.
const deferralSeconds = 1

// prepare starts GoBGP for the session, which takes one to two seconds. The router receives nothing.
func (s *session) prepare(restarting bool) error {
	ctx, cancel := context.WithCancel(context.Background())
	s.ctx, s.cancel = ctx, cancel
	if err := s.speaker.start(s.peer.LocalASN, s.routerID); err != nil {
		return err
	}
	if err := s.speaker.watch(ctx, s.handle); err != nil {
		return err
	}
	s.restarting = restarting
	return s.speaker.addPeer(s.peer, s.transport.address(), restarting)
}

// begin opens the session after its routes are in GoBGP's table, so that End-of-RIB (RFC 4724, section 2)
// follows all of them and the peer removes only stale routes that are gone.
func (s *session) begin(routes []announce.Route) error {
	if err := s.setRoutes(routes); err != nil {
		return err
	}
	s.transport.begin()
	return nil
}

func gracefulRestart(peer model.Peer, restarting bool) *api.GracefulRestart {
	graceful := peer.RestartTime > 0
	// NotificationEnabled (the N bit of RFC 8538) stays off: with it, a peer whose hold timer expires would
	// retain the routes of a dead node.
	return &api.GracefulRestart{
		Enabled:         graceful,
		RestartTime:     uint32(peer.RestartTime.Seconds()),
		DeferralTime:    deferralSeconds,
		LocalRestarting: graceful && restarting,
	}
}
