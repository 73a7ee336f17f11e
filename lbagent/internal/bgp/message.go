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
	headerLength  = 19
	longestLength = 4096
	markerLength  = 16
)

// Codes and subcodes of NOTIFICATIONs that the agent sends (RFC 4271, section 4.5).
const (
	codeHeader         = 1
	codeOpen           = 2
	codeFSM            = 5
	codeCease          = 6
	subcodeMarker      = 1
	subcodeLength      = 2
	subcodeType        = 3
	subcodeVersion     = 1
	subcodeBadAS       = 2
	subcodeBadID       = 3
	subcodeParameter   = 4
	subcodeHoldTime    = 6
	subcodeCapability  = 7
	subcodeOpenSent    = 1
	subcodeOpenConfirm = 2
	subcodeEstablished = 3
	subcodeCollision   = 7
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

// readMessage reads exactly one message into buffer, which must have longestLength octets.
func readMessage(r io.Reader, buffer []byte) ([]byte, error) {
	header := buffer[:headerLength]
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	for _, octet := range header[:markerLength] {
		if octet != 0xff {
			return nil, headerError(subcodeMarker, nil, "a message without the marker of BGP")
		}
	}
	length := int(binary.BigEndian.Uint16(header[markerLength:]))
	if length < headerLength || length > longestLength {
		return nil, headerError(subcodeLength, header[markerLength:headerLength-1], "a message of length %d", length)
	}
	if _, err := io.ReadFull(r, buffer[headerLength:length]); err != nil {
		return nil, err
	}
	return buffer[:length], nil
}

func kindOf(message []byte) byte { return message[headerLength-1] }

func headerError(subcode byte, data []byte, format string, values ...any) error {
	return &protocolError{code: codeHeader, subcode: subcode, what: fmt.Sprintf(format, values...), data: slices.Clone(data)}
}

// isEndOfRIB reports whether an UPDATE is an End-of-RIB (RFC 4724, section 2).
func isEndOfRIB(message []byte) bool {
	_, _, is := endOfRIBOf(message)
	return is
}

// endOfRIBOf recognizes an empty UPDATE and an empty MP_UNREACH_NLRI alone.
func endOfRIBOf(message []byte) (afi uint16, safi byte, is bool) {
	const (
		mpUnreach      = 15
		extendedLength = 0x10
	)
	body := message[headerLength:]
	if len(body) < 4 || binary.BigEndian.Uint16(body) != 0 {
		return 0, 0, false
	}
	attributes := body[4:]
	if int(binary.BigEndian.Uint16(body[2:])) != len(attributes) {
		return 0, 0, false
	}
	switch {
	case len(attributes) == 0:
		return bgp.AFI_IP, bgp.SAFI_UNICAST, true
	case len(attributes) == 6 && attributes[0]&extendedLength == 0:
		is = attributes[1] == mpUnreach && attributes[2] == 3
	case len(attributes) == 7 && attributes[0]&extendedLength != 0:
		is = attributes[1] == mpUnreach && attributes[2] == 0 && attributes[3] == 3
	}
	if !is {
		return 0, 0, false
	}
	family := attributes[len(attributes)-3:]
	return binary.BigEndian.Uint16(family), family[2], true
}

func endOfRIBFor(afi uint16) []byte {
	if afi == bgp.AFI_IP {
		return encode(bgp.BGP_MSG_UPDATE, 0, 0, 0, 0)
	}
	const optional, mpUnreach = 0x80, 15
	return encode(bgp.BGP_MSG_UPDATE, 0, 0, 0, 6, optional, mpUnreach, 3, 0, byte(afi), bgp.SAFI_UNICAST)
}

// inbound validates a router's messages and replaces each with an equivalent one for GoBGP, or none, so that
// no router reaches GoBGP's parsers. UPDATEs are dropped, because GoBGP would retain routes that are never
// used. GoBGP's queues have no bound, so messages that a router may send often are dropped, too.
type inbound struct {
	peer *model.Peer
	// self is the node's BGP identifier; an invalid one is not compared.
	self netip.Addr

	open      *routerOpen
	carried   families
	confirmed bool
	ended     families
}

// check returns the message for GoBGP, or nil if there is none. An error ends the session. Messages that
// GoBGP does not expect in a state are errors: it panics on an OPEN in Established.
func (i *inbound) check(message []byte) (pass []byte, err error) {
	kind := kindOf(message)
	switch {
	case kind == bgp.BGP_MSG_NOTIFICATION:
		if len(message) < headerLength+2 {
			return nil, lengthError(message, "a NOTIFICATION without a code")
		}
		return encode(bgp.BGP_MSG_NOTIFICATION, message[headerLength], message[headerLength+1]), nil
	case kind < bgp.BGP_MSG_OPEN || kind > bgp.BGP_MSG_ROUTE_REFRESH:
		return nil, headerError(subcodeType, []byte{kind}, "a message of type %d", kind)
	case i.open == nil:
		if kind != bgp.BGP_MSG_OPEN {
			return nil, &protocolError{code: codeFSM, subcode: subcodeOpenSent, what: "a message before OPEN"}
		}
		return i.begin(message)
	case kind == bgp.BGP_MSG_KEEPALIVE:
		if len(message) != headerLength {
			return nil, lengthError(message, "a KEEPALIVE with a body")
		}
		if i.confirmed {
			return nil, nil
		}
		i.confirmed = true
		return message, nil
	case !i.confirmed:
		return nil, &protocolError{code: codeFSM, subcode: subcodeOpenConfirm, what: "a message before KEEPALIVE"}
	case kind == bgp.BGP_MSG_UPDATE:
		return i.update(message), nil
	case kind == bgp.BGP_MSG_ROUTE_REFRESH:
		return i.refresh(message)
	default:
		return nil, &protocolError{code: codeFSM, subcode: subcodeEstablished, what: "a second OPEN"}
	}
}

func lengthError(message []byte, what string) error {
	return headerError(subcodeLength, message[markerLength:headerLength-1], "%s", what)
}

func (i *inbound) begin(message []byte) (pass []byte, err error) {
	open, err := parseOpen(message)
	if err != nil {
		return nil, err
	}
	if err := open.check(i.peer, i.self); err != nil {
		return nil, err
	}
	i.open, i.carried = open, open.common(i.peer)
	return open.forGoBGP(i.carried), nil
}

func (i *inbound) update(message []byte) (pass []byte) {
	afi, safi, is := endOfRIBOf(message)
	if !is || !i.carried.has(afi, safi) || i.ended.has(afi, safi) {
		return nil
	}
	i.ended.add(afi, safi)
	return endOfRIBFor(afi)
}

// refresh passes a ROUTE-REFRESH (RFC 2918), but no demarcation of RFC 7313, which is not offered.
func (i *inbound) refresh(message []byte) (pass []byte, err error) {
	body := message[headerLength:]
	if len(body) != familyLength {
		return nil, lengthError(message, "a ROUTE-REFRESH of another length")
	}
	if body[2] != 0 || !i.carried.has(binary.BigEndian.Uint16(body), body[3]) {
		return nil, nil
	}
	return message, nil
}
