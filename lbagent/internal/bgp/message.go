// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Lengths of messages (RFC 4271, section 4.1) in octets. Extended messages (RFC 8654) are not offered.
const (
	headerLength     = 19
	maxMessageLength = 4096
	markerLength     = 16
)

// Codes and subcodes of NOTIFICATIONs that the agent sends (RFC 4271, section 4.5).
const (
	codeHeader          = 1
	codeOpen            = 2
	codeHoldTimer       = 4
	codeFSM             = 5
	codeCease           = 6
	subcodeMarker       = 1
	subcodeLength       = 2
	subcodeType         = 3
	subcodeVersion      = 1
	subcodeBadAS        = 2
	subcodeBadID        = 3
	subcodeParameter    = 4
	subcodeHoldTime     = 6
	subcodeCapability   = 7
	subcodeOpenSent     = 1
	subcodeOpenConfirm  = 2
	subcodeEstablished  = 3
	subcodeRole         = 11
	subcodeDeconfigured = 3
	subcodeCollision    = 7
	subcodeBFD          = 10
)

type protocolError struct {
	code, subcode byte
	what          string
	data          []byte
}

func (e *protocolError) Error() string {
	return fmt.Sprintf("%s: sent NOTIFICATION %s", e.what, notificationName(e.code, e.subcode))
}

func (e *protocolError) notification() []byte {
	return encode(bgp.BGP_MSG_NOTIFICATION, append([]byte{e.code, e.subcode}, e.data...)...)
}

func encode(kind byte, body ...byte) []byte {
	message := make([]byte, headerLength, headerLength+len(body))
	for i := range markerLength {
		message[i] = 0xff
	}
	binary.BigEndian.PutUint16(message[markerLength:], uint16(headerLength+len(body)))
	message[headerLength-1] = kind
	return append(message, body...)
}

// readMessage reads exactly one message into buffer, which must have maxMessageLength octets.
func readMessage(r io.Reader, buffer []byte) ([]byte, error) {
	header := buffer[:headerLength]
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	for _, octet := range header[:markerLength] {
		if octet != 0xff {
			return nil, badHeader(subcodeMarker, nil, "a message without the BGP marker")
		}
	}
	length := int(binary.BigEndian.Uint16(header[markerLength:]))
	if length < headerLength || length > maxMessageLength {
		return nil, badHeader(subcodeLength, header[markerLength:headerLength-1], "a message of length %d", length)
	}
	if _, err := io.ReadFull(r, buffer[headerLength:length]); err != nil {
		return nil, err
	}
	return buffer[:length], nil
}

func messageType(message []byte) byte { return message[headerLength-1] }

func badHeader(subcode byte, data []byte, format string, values ...any) error {
	return &protocolError{code: codeHeader, subcode: subcode, what: fmt.Sprintf(format, values...), data: slices.Clone(data)}
}

// received is a valid message of a router, or its event alone.
type received struct {
	event event
	// open is the router's OPEN.
	open *routerOpen
	// refresh are the families of a ROUTE-REFRESH.
	refresh families
}

// parseMessage parses the parts of a router's message that the session uses. UPDATEs are not parsed. Its
// errors are protocolErrors.
func parseMessage(message []byte, s state, peer *model.Peer, self netip.Addr) (received, error) {
	kind := messageType(message)
	switch {
	case kind == bgp.BGP_MSG_NOTIFICATION:
		if len(message) < headerLength+2 {
			return received{event: headerError}, lengthError(message, "a NOTIFICATION without a code")
		}
		return received{event: notificationReceived}, nil
	case kind == bgp.BGP_MSG_KEEPALIVE:
		if len(message) != headerLength {
			return received{event: headerError}, lengthError(message, "a KEEPALIVE with a body")
		}
		return received{event: keepaliveReceived}, nil
	case kind == bgp.BGP_MSG_UPDATE:
		return received{event: updateReceived}, nil
	case kind == bgp.BGP_MSG_ROUTE_REFRESH:
		return parseRefresh(message)
	case kind != bgp.BGP_MSG_OPEN:
		return received{event: headerError}, badHeader(subcodeType, []byte{kind}, "a message of type %d", kind)
	case s != stateOpenSent:
		return received{event: openReceived}, nil
	}
	open, err := parseOpen(message)
	if err == nil {
		err = open.check(peer, self)
	}
	if err != nil {
		return received{event: openError, open: open}, err
	}
	return received{event: openReceived, open: open}, nil
}

// parseRefresh parses a ROUTE-REFRESH (RFC 2918). Demarcations (RFC 7313) request nothing.
func parseRefresh(message []byte) (received, error) {
	body := message[headerLength:]
	if len(body) != familyLength {
		return received{event: headerError}, lengthError(message, "a ROUTE-REFRESH of invalid length")
	}
	r := received{event: refreshReceived}
	if body[2] == 0 {
		r.refresh.add(binary.BigEndian.Uint16(body), body[3])
	}
	return r, nil
}

// unexpected returns the FSM error of a message that a state does not permit (RFC 6608).
func unexpected(s state) *protocolError {
	switch s {
	case stateOpenSent:
		return &protocolError{code: codeFSM, subcode: subcodeOpenSent, what: "a message before OPEN"}
	case stateOpenConfirm:
		return &protocolError{code: codeFSM, subcode: subcodeOpenConfirm, what: "a message before KEEPALIVE"}
	}
	return &protocolError{code: codeFSM, subcode: subcodeEstablished, what: "a second OPEN"}
}

func lengthError(message []byte, what string) error {
	return badHeader(subcodeLength, message[markerLength:headerLength-1], "%s", what)
}
