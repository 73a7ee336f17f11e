// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// deferralSeconds bounds how long a restarting session waits for the peer's
// own routes before it sends ours (Selection_Deferral_Timer, RFC 4724, section
// 4.1). Our routes depend on nothing that the peer sends, so it is as short as
// GoBGP allows.
const deferralSeconds = 1

// prepare has GoBGP begin the session, which takes it one to two seconds. Nothing is sent to the router
// before begin.
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

// begin opens the session after the routes are in place, so that its End-of-RIB (RFC 4724,
// section 2) follows all of them: a peer that kept our routes as stale ones removes those
// which it did not get by then. GoBGP sends End-of-RIB after the routes that it has when the
// session is established; of a restarting session, after the deferral time.
func (s *session) begin(routes []announce.Route) error {
	if err := s.setRoutes(routes); err != nil {
		return err
	}
	s.transport.begin()
	return nil
}

// gracefulRestart says how a peer is to treat our routes while the session is away.
func gracefulRestart(peer model.Peer, restarting bool) *api.GracefulRestart {
	graceful := peer.RestartTime > 0
	// NotificationEnabled (the N bit of RFC 8538) stays off: with it, a
	// peer whose hold timer expired would keep the routes of a dead node.
	return &api.GracefulRestart{
		Enabled:         graceful,
		RestartTime:     uint32(peer.RestartTime.Seconds()),
		DeferralTime:    deferralSeconds,
		LocalRestarting: graceful && restarting,
	}
}
