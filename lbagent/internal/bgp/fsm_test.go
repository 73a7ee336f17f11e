// SPDX-License-Identifier: Apache-2.0

package bgp

import "testing"

// The transitions of RFC 4271, section 8.2.2. Events that are not listed are FSM errors in the states with
// a connection and ignored in the others.
func TestTransitions(t *testing.T) {
	const notified = sendNotification | releaseTCP
	connecting := map[event]transition{
		connectRetryTimerExpires: {stateConnect, connectTCP},
		tcpConnected:             {stateOpenSent, sendOpen | startHold},
		tcpAccepted:              {stateOpenSent, sendOpen | startHold},
		tcpFails:                 {stateIdle, releaseTCP},
		manualStop:               {stateIdle, releaseTCP},
		automaticStop:            {stateIdle, releaseTCP},
		collisionDump:            {stateIdle, releaseTCP},
	}
	connected := func(more map[event]transition) map[event]transition {
		all := map[event]transition{
			collisionDump:        {stateIdle, releaseTCP},
			notificationReceived: {stateIdle, releaseTCP},
			sendHoldTimerExpires: {stateIdle, releaseTCP},
			tcpFails:             {stateIdle, releaseTCP},
		}
		for e, t := range more {
			all[e] = t
		}
		return all
	}
	for s, listed := range map[state]map[event]transition{
		stateIdle: {
			automaticStart:        {stateConnect, connectTCP},
			automaticStartPassive: {stateActive, startConnectRetry},
		},
		stateConnect:  connecting,
		stateActive:   connecting,
		stateOpenSent: connected(map[event]transition{openReceived: {stateOpenConfirm, sendKeepalive | startHold | startKeepalive}}),
		stateOpenConfirm: connected(map[event]transition{
			keepaliveTimerExpires: {stateOpenConfirm, sendKeepalive | startKeepalive},
			keepaliveReceived:     {stateEstablished, startHold | establish},
		}),
		stateEstablished: connected(map[event]transition{
			keepaliveTimerExpires: {stateEstablished, sendKeepalive | startKeepalive},
			keepaliveReceived:     {stateEstablished, startHold},
			updateReceived:        {stateEstablished, startHold},
			refreshReceived:       {stateEstablished, startHold | resendRoutes},
		}),
	} {
		for e := event(0); e <= refreshReceived+1; e++ {
			want, found := listed[e]
			switch {
			case found:
			case s >= stateOpenSent:
				want = transition{stateIdle, notified}
			default:
				want = transition{s, 0}
			}
			if got := s.on(e); got != want {
				t.Errorf("%s, event %d: state %s and actions %b, want %s and %b", s, e, got.next, got.do, want.next, want.do)
			}
		}
	}
}
