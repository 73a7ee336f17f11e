// SPDX-License-Identifier: Apache-2.0

package bgp

import millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"

// state is a state of the finite state machine (RFC 4271, section 8.2.2).
type state int

const (
	stateIdle state = iota
	stateConnect
	stateActive
	stateOpenSent
	stateOpenConfirm
	stateEstablished
)

var stateNames = [...]millracev1beta1.SessionState{
	millracev1beta1.SessionIdle, millracev1beta1.SessionConnect, millracev1beta1.SessionActive,
	millracev1beta1.SessionOpenSent, millracev1beta1.SessionOpenConfirm, millracev1beta1.SessionEstablished,
}

func (s state) String() string { return string(stateNames[s]) }

// event is an event of the finite state machine with its number in RFC 4271, section 8.1.
type event int

const (
	// manualStop ends the session of a removed peer.
	manualStop     event = 2
	automaticStart event = 3
	// automaticStartPassive delays the first attempt by the ConnectRetryTimer, or is for a passive peer.
	automaticStartPassive event = 5
	// automaticStop ends the session for a reason of the node, such as a BFD session that is down.
	automaticStop            event = 8
	connectRetryTimerExpires event = 9
	holdTimerExpires         event = 10
	keepaliveTimerExpires    event = 11
	tcpConnected             event = 16
	tcpAccepted              event = 17
	tcpFails                 event = 18
	openReceived             event = 19
	headerError              event = 21
	openError                event = 22
	// collisionDump closes a connection in favor of another one, or to apply an edit.
	collisionDump        event = 23
	notificationReceived event = 25
	keepaliveReceived    event = 26
	updateReceived       event = 27
	// sendHoldTimerExpires is from RFC 9687, section 4.
	sendHoldTimerExpires event = 29
	// refreshReceived has no number, because RFC 2918 defines no event.
	refreshReceived event = 30
)

// action is a set of actions of a transition.
type action int

const (
	connectTCP action = 1 << iota
	// releaseTCP closes the connection; with sendNotification after the message is sent.
	releaseTCP
	startConnectRetry
	sendOpen
	sendKeepalive
	// sendNotification reports the event: the error that was found, Cease, or an FSM error.
	sendNotification
	// startHold starts the HoldTimer, with openTimeout before it is negotiated.
	startHold
	startKeepalive
	// establish starts the announcement of routes.
	establish
	resendRoutes
)

type transition struct {
	next state
	do   action
}

// on returns the transition of an event (RFC 4271, section 8.2.2). Unexpected events in the states with a
// connection are FSM errors (RFC 6608), others are ignored.
func (s state) on(e event) transition {
	switch s {
	case stateIdle:
		return s.onIdle(e)
	case stateConnect, stateActive:
		return s.onConnecting(e)
	}
	switch e {
	case collisionDump, notificationReceived, sendHoldTimerExpires, tcpFails:
		return transition{stateIdle, releaseTCP}
	}
	switch s {
	case stateOpenSent:
		if e == openReceived {
			return transition{stateOpenConfirm, sendKeepalive | startHold | startKeepalive}
		}
	case stateOpenConfirm:
		switch e {
		case keepaliveReceived:
			return transition{stateEstablished, startHold | establish}
		case keepaliveTimerExpires:
			return transition{s, sendKeepalive | startKeepalive}
		}
	default:
		return s.onEstablished(e)
	}
	return transition{stateIdle, sendNotification | releaseTCP}
}

func (s state) onEstablished(e event) transition {
	switch e {
	case keepaliveTimerExpires:
		return transition{s, sendKeepalive | startKeepalive}
	case keepaliveReceived, updateReceived:
		return transition{s, startHold}
	case refreshReceived:
		return transition{s, startHold | resendRoutes}
	}
	return transition{stateIdle, sendNotification | releaseTCP}
}

func (s state) onIdle(e event) transition {
	switch e {
	case automaticStart:
		return transition{stateConnect, connectTCP}
	case automaticStartPassive:
		return transition{stateActive, startConnectRetry}
	}
	return transition{s, 0}
}

func (s state) onConnecting(e event) transition {
	switch e {
	case connectRetryTimerExpires:
		return transition{stateConnect, connectTCP}
	case tcpConnected, tcpAccepted:
		return transition{stateOpenSent, sendOpen | startHold}
	case tcpFails, manualStop, automaticStop, collisionDump:
		return transition{stateIdle, releaseTCP}
	}
	return transition{s, 0}
}
