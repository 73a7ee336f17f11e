// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

// Messages of RFC 4271, section 4.1, in octets. Extended messages (RFC 8654) are not offered.
const (
	headerLength  = 19
	longestLength = 4096
	markerLength  = 16
)

// Codes and subcodes of NOTIFICATIONs that we send ourselves (RFC 4271, section 4.5).
const (
	codeHeader      = 1
	codeOpen        = 2
	codeFSM         = 5
	subcodeMarker   = 1
	subcodeLength   = 2
	subcodeBadAS    = 2
	subcodeOpenSent = 1
	// subcodeOpenConfirm and subcodeEstablished are those of RFC 6608.
	subcodeOpenConfirm = 2
	subcodeEstablished = 3
)

// protocolError is why a router's message is refused, with the NOTIFICATION that tells it.
type protocolError struct {
	code, subcode byte
	what          string
}

func (e *protocolError) Error() string {
	return fmt.Sprintf("%s: sent NOTIFICATION %s", e.what, notificationName(e.code, e.subcode))
}

// notification is the message that tells the error.
func (e *protocolError) notification() []byte {
	return encode(bgp.BGP_MSG_NOTIFICATION, e.code, e.subcode)
}

// encode returns a message.
func encode(kind byte, body ...byte) []byte {
	message := make([]byte, headerLength, headerLength+len(body))
	for i := range markerLength {
		message[i] = 0xff
	}
	binary.BigEndian.PutUint16(message[markerLength:], uint16(headerLength+len(body)))
	message[headerLength-1] = kind
	return append(message, body...)
}

// readMessage reads one message into buffer, which must hold the longest. It never reads, nor
// keeps, more than one.
func readMessage(r io.Reader, buffer []byte) ([]byte, error) {
	header := buffer[:headerLength]
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, err
	}
	for _, octet := range header[:markerLength] {
		if octet != 0xff {
			return nil, &protocolError{codeHeader, subcodeMarker, "a message without the marker of BGP"}
		}
	}
	length := int(binary.BigEndian.Uint16(header[markerLength:]))
	if length < headerLength || length > longestLength {
		return nil, &protocolError{codeHeader, subcodeLength, fmt.Sprintf("a message of length %d", length)}
	}
	if _, err := io.ReadFull(r, buffer[headerLength:length]); err != nil {
		return nil, err
	}
	return buffer[:length], nil
}

func kindOf(message []byte) byte { return message[headerLength-1] }

// isEndOfRIB reports whether an UPDATE is an End-of-RIB (RFC 4724, section 2): without
// anything or, for families other than IPv4, with an empty MP_UNREACH_NLRI alone.
func isEndOfRIB(message []byte) bool {
	const (
		mpUnreach      = 15
		extendedLength = 0x10
	)
	body := message[headerLength:]
	if len(body) < 4 || binary.BigEndian.Uint16(body) != 0 {
		return false
	}
	attributes := body[4:]
	if int(binary.BigEndian.Uint16(body[2:])) != len(attributes) {
		return false
	}
	switch {
	case len(attributes) == 0:
		return true
	case len(attributes) == 6 && attributes[0]&extendedLength == 0:
		return attributes[1] == mpUnreach && attributes[2] == 3
	case len(attributes) == 7 && attributes[0]&extendedLength != 0:
		return attributes[1] == mpUnreach && attributes[2] == 0 && attributes[3] == 3
	}
	return false
}

// mostEnds is how many End-of-RIBs of a session GoBGP sees: one of each family, and as many again.
const mostEnds = 4

// inbound decides which of a router's messages GoBGP sees. GoBGP keeps every route that it is
// sent, and we use none: an UPDATE is dropped, and only says that the router lives. GoBGP queues
// without a bound, so it sees nothing that a router may send often.
type inbound struct {
	// accepts is asked for the autonomous system of the router's OPEN; nil accepts any.
	accepts func(asn uint32) error

	opened, confirmed bool
	// extended is true after an OPEN with the capability of IPv6 next hops for IPv4 routes (RFC
	// 8950, section 4).
	extended bool
	// restarting is true after an OPEN with the Restart State bit (RFC 4724, section 3).
	restarting bool
	// ends is how many End-of-RIBs came.
	ends int
	// holdTime is that of the OPEN (RFC 4271, section 4.2).
	holdTime time.Duration
	// asn is the router's autonomous system, of its OPEN.
	asn uint32
}

// check says whether a message goes on to GoBGP. The error, if any, ends the session. What
// GoBGP does not expect in a state is kept from it: an OPEN in an established session panics
// there.
func (i *inbound) check(message []byte) (pass bool, err error) {
	kind := kindOf(message)
	switch {
	case kind == bgp.BGP_MSG_NOTIFICATION:
		if len(message) < headerLength+2 {
			return false, &protocolError{codeHeader, subcodeLength, "a NOTIFICATION without a code"}
		}
		return true, nil
	case !i.opened:
		if kind != bgp.BGP_MSG_OPEN {
			return false, &protocolError{codeFSM, subcodeOpenSent, "a message before OPEN"}
		}
		if err := i.open(message); err != nil {
			return false, err
		}
		i.opened = true
		return true, nil
	case kind == bgp.BGP_MSG_KEEPALIVE:
		if len(message) != headerLength {
			return false, &protocolError{codeHeader, subcodeLength, "a KEEPALIVE with a body"}
		}
		// Those after the first one only say that the router lives.
		first := !i.confirmed
		i.confirmed = true
		return first, nil
	case !i.confirmed:
		return false, &protocolError{codeFSM, subcodeOpenConfirm, "a message before KEEPALIVE"}
	case kind == bgp.BGP_MSG_UPDATE:
		if i.ends == mostEnds || !isEndOfRIB(message) {
			return false, nil
		}
		i.ends++
		return true, nil
	case kind == bgp.BGP_MSG_ROUTE_REFRESH:
		if len(message) != headerLength+4 {
			return false, &protocolError{codeHeader, subcodeLength, "a ROUTE-REFRESH of another length"}
		}
		return true, nil
	default:
		return false, &protocolError{codeFSM, subcodeEstablished, fmt.Sprintf("a message of type %d", kind)}
	}
}

// open reads the OPEN as GoBGP will, so that what it cannot read ends this session and not
// the process.
func (i *inbound) open(message []byte) (err error) {
	refuse := func(what any) error {
		return &protocolError{codeOpen, 0, fmt.Sprintf("an OPEN that cannot be read (%v)", what)}
	}
	defer func() {
		if cause := recover(); cause != nil {
			err = refuse(cause)
		}
	}()
	parsed, err := bgp.ParseBGPMessage(message)
	if err != nil {
		return refuse(err)
	}
	open, is := parsed.Body.(*bgp.BGPOpen)
	if !is {
		return refuse("no OPEN")
	}
	i.extended, i.restarting = takesExtended(open), isRestarting(open)
	i.holdTime, i.asn = time.Duration(open.HoldTime)*time.Second, asnOf(open)
	if i.accepts == nil {
		return nil
	}
	if err := i.accepts(i.asn); err != nil {
		return &protocolError{codeOpen, subcodeBadAS, err.Error()}
	}
	return nil
}

// asnOf is the autonomous system of an OPEN, of four octets where it is told (RFC 6793).
func asnOf(open *bgp.BGPOpen) uint32 {
	for _, capability := range capabilitiesOf(open) {
		if four, is := capability.(*bgp.CapFourOctetASNumber); is {
			return four.CapValue
		}
	}
	return uint32(open.MyAS)
}

// takesExtended reports whether an OPEN offers IPv6 next hops for IPv4 unicast routes.
func takesExtended(open *bgp.BGPOpen) bool {
	for _, capability := range capabilitiesOf(open) {
		extended, is := capability.(*bgp.CapExtendedNexthop)
		if is && slices.ContainsFunc(extended.Tuples, func(tuple *bgp.CapExtendedNexthopTuple) bool {
			return *tuple == bgp.CapExtendedNexthopTuple{NLRIAFI: bgp.AFI_IP, NLRISAFI: bgp.SAFI_UNICAST, NexthopAFI: bgp.AFI_IP6}
		}) {
			return true
		}
	}
	return false
}

// isRestarting reports whether the OPEN is that of a router that has restarted.
func isRestarting(open *bgp.BGPOpen) bool {
	const restartState = 0x08
	return slices.ContainsFunc(capabilitiesOf(open), func(capability bgp.ParameterCapabilityInterface) bool {
		restart, is := capability.(*bgp.CapGracefulRestart)
		return is && restart.Flags&restartState != 0
	})
}

func capabilitiesOf(open *bgp.BGPOpen) []bgp.ParameterCapabilityInterface {
	var all []bgp.ParameterCapabilityInterface
	for _, parameter := range open.OptParams {
		if capabilities, is := parameter.(*bgp.OptionParameterCapability); is {
			all = append(all, capabilities.Capability...)
		}
	}
	return all
}
