// SPDX-License-Identifier: Apache-2.0

// Package bfd implements control packets and the session state machine of Bidirectional Forwarding Detection
// (RFC 5880) without I/O or clock; package lbagent/bfd is the process.
//
// Sessions are asynchronous. A Required Min Echo RX Interval of zero disables Echo, authenticated packets are
// discarded, and Demand mode is supported but never requested.
package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

const (
	version = 1
	// packetLength excludes the optional authentication section.
	packetLength = 24
)

// Flags in the second byte of a packet (RFC 5880, section 4.1).
const (
	flagPoll = 1 << (5 - iota)
	flagFinal
	flagIndependent
	flagAuthentication
	flagDemand
	flagMultipoint
)

// State is the state of a session (RFC 5880, section 4.1).
type State uint8

// States of a session.
const (
	AdminDown State = iota
	Down
	Init
	Up
)

func (s State) String() string {
	return [...]string{"AdminDown", "Down", "Init", "Up"}[s&3]
}

// Diagnostic is the reason why a session left Up (RFC 5880, section 4.1).
type Diagnostic uint8

// Diagnostics sent by this implementation; peers may send others.
const (
	DiagnosticNone             Diagnostic = 0
	DiagnosticDetectionExpired Diagnostic = 1
	DiagnosticNeighborDown     Diagnostic = 3
	DiagnosticAdminDown        Diagnostic = 7
)

func (d Diagnostic) String() string {
	names := [...]string{
		"no diagnostic", "control detection time expired", "echo function failed",
		"neighbor signaled session down", "forwarding plane reset", "path down",
		"concatenated path down", "administratively down", "reverse concatenated path down",
	}
	if int(d) < len(names) {
		return names[d]
	}
	return fmt.Sprintf("diagnostic %d", uint8(d))
}

// Packet is a control packet (RFC 5880, section 4.1). Intervals are encoded in microseconds.
type Packet struct {
	Diagnostic  Diagnostic
	State       State
	Poll, Final bool
	// Independent is the C bit: BFD does not depend on the control plane.
	Independent bool
	// Demand is the D bit: the sender requires no periodic packets.
	Demand                                 bool
	DetectMultiplier                       uint8
	MyDiscriminator, YourDiscriminator     uint32
	DesiredMinTx, RequiredMinRx, MinEchoRx time.Duration
}

// Errors of Decode, for packets to discard (RFC 5880, section 6.8.6).
var (
	ErrLength         = errors.New("length is not that of a BFD control packet")
	ErrVersion        = errors.New("version is not 1")
	ErrMultiplier     = errors.New("detect multiplier is zero")
	ErrMultipoint     = errors.New("multipoint bit is set")
	ErrDiscriminator  = errors.New("my discriminator is zero")
	ErrNoSession      = errors.New("your discriminator is zero, but the state is neither Down nor AdminDown")
	ErrAuthentication = errors.New("unexpected authentication: this session does not use it")
	ErrPollAndFinal   = errors.New("both poll and final are set")
)

// Decode parses a UDP payload. It ignores bytes beyond the packet's length field.
func Decode(payload []byte) (Packet, error) {
	if len(payload) < packetLength {
		return Packet{}, fmt.Errorf("%w: %d bytes", ErrLength, len(payload))
	}
	if got := payload[0] >> 5; got != version {
		return Packet{}, fmt.Errorf("%w but %d", ErrVersion, got)
	}
	flags, length := payload[1]&0x3f, int(payload[3])
	if length < packetLength || length > len(payload) {
		return Packet{}, fmt.Errorf("%w: %d in a datagram of %d bytes", ErrLength, length, len(payload))
	}
	p := Packet{
		Diagnostic:        Diagnostic(payload[0] & 0x1f),
		State:             State(payload[1] >> 6),
		Poll:              flags&flagPoll != 0,
		Final:             flags&flagFinal != 0,
		Independent:       flags&flagIndependent != 0,
		Demand:            flags&flagDemand != 0,
		DetectMultiplier:  payload[2],
		MyDiscriminator:   binary.BigEndian.Uint32(payload[4:]),
		YourDiscriminator: binary.BigEndian.Uint32(payload[8:]),
		DesiredMinTx:      microseconds(payload[12:]),
		RequiredMinRx:     microseconds(payload[16:]),
		MinEchoRx:         microseconds(payload[20:]),
	}
	switch {
	case p.DetectMultiplier == 0:
		return Packet{}, ErrMultiplier
	case flags&flagMultipoint != 0:
		return Packet{}, ErrMultipoint
	case p.MyDiscriminator == 0:
		return Packet{}, ErrDiscriminator
	case p.YourDiscriminator == 0 && p.State != Down && p.State != AdminDown:
		return Packet{}, ErrNoSession
	case flags&flagAuthentication != 0:
		return Packet{}, ErrAuthentication
	case p.Poll && p.Final:
		return Packet{}, ErrPollAndFinal
	}
	return p, nil
}

// Append appends the packet's encoding to buffer.
func (p Packet) Append(buffer []byte) []byte {
	flags := byte(p.State) << 6
	for _, flag := range []struct {
		set bool
		bit byte
	}{{p.Poll, flagPoll}, {p.Final, flagFinal}, {p.Independent, flagIndependent}, {p.Demand, flagDemand}} {
		if flag.set {
			flags |= flag.bit
		}
	}
	buffer = append(buffer, version<<5|byte(p.Diagnostic)&0x1f, flags, p.DetectMultiplier, packetLength)
	buffer = binary.BigEndian.AppendUint32(buffer, p.MyDiscriminator)
	buffer = binary.BigEndian.AppendUint32(buffer, p.YourDiscriminator)
	for _, interval := range []time.Duration{p.DesiredMinTx, p.RequiredMinRx, p.MinEchoRx} {
		buffer = binary.BigEndian.AppendUint32(buffer, uint32(interval/time.Microsecond))
	}
	return buffer
}

func microseconds(field []byte) time.Duration {
	return time.Duration(binary.BigEndian.Uint32(field)) * time.Microsecond
}
