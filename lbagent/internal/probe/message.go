// SPDX-License-Identifier: Apache-2.0

// Package probe checks whether other nodes receive encapsulated packets. Their XDP program answers
// (bpf/src/probe.h), so an answer proves that the path, the node and its program work. Package membership
// evaluates missing answers.
package probe

import (
	"encoding/binary"

	"github.com/dchest/siphash"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Port is the Geneve port (RFC 8926, section 3.3).
const Port = 6081

// KeySize is the key length in bytes.
const KeySize = 16

// Key authenticates probes and answers of the cluster's nodes.
type Key [KeySize]byte

// The format is struct probe in bpf/src/types.h after a Geneve header without options.
const (
	messageSize = 8 + 24
	nonceAt     = 16
	// protocol is the local experimental EtherType 1 (IEEE 802).
	vni      = 0x4d4c50
	protocol = 0x88b5
	// control is the Geneve O bit (RFC 8926, section 3.4).
	control = 0x80
)

type kind uint32

const (
	request kind = 1
	answer  kind = 2
	// agentSilent is the answer of a node whose agent is silent.
	agentSilent kind = 3
)

type message struct {
	kind  kind
	from  forwarding.NodeID
	to    forwarding.NodeID
	nonce uint64
}

func (m message) isAnswer() bool { return m.kind == answer || m.kind == agentSilent }

func (m message) tag(key Key) uint64 {
	var text [16]byte
	binary.LittleEndian.PutUint64(text[:8], uint64(m.kind)|uint64(m.from)<<16|uint64(m.to)<<32)
	binary.LittleEndian.PutUint64(text[8:], m.nonce)
	return siphash.Hash(binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:]), text[:])
}

func (m message) encode(key Key) [messageSize]byte {
	var b [messageSize]byte
	b[1] = control
	binary.BigEndian.PutUint16(b[2:], protocol)
	binary.BigEndian.PutUint32(b[4:], vni<<8)
	binary.BigEndian.PutUint32(b[8:], uint32(m.kind))
	binary.BigEndian.PutUint16(b[12:], uint16(m.from))
	binary.BigEndian.PutUint16(b[14:], uint16(m.to))
	binary.LittleEndian.PutUint64(b[nonceAt:], m.nonce)
	binary.LittleEndian.PutUint64(b[24:], m.tag(key))
	return b
}

func decode(b []byte, keys []Key) (message, bool) {
	if len(b) != messageSize || binary.BigEndian.Uint32(b[4:]) != vni<<8 {
		return message{}, false
	}
	m := message{
		kind:  kind(binary.BigEndian.Uint32(b[8:])),
		from:  forwarding.NodeID(binary.BigEndian.Uint16(b[12:])),
		to:    forwarding.NodeID(binary.BigEndian.Uint16(b[14:])),
		nonce: binary.LittleEndian.Uint64(b[nonceAt:]),
	}
	tag := binary.LittleEndian.Uint64(b[24:])
	for _, key := range keys {
		if m.tag(key) == tag {
			return m, true
		}
	}
	return message{}, false
}

// RouterProbe encodes a probe that a router forwards to any node, padded with zeros to length.
func RouterProbe(key Key, from forwarding.NodeID, nonce uint64, length int) []byte {
	encoded := message{kind: request, from: from, nonce: nonce}.encode(key)
	payload := make([]byte, max(length, len(encoded)))
	copy(payload, encoded[:])
	return payload
}

// RouterAnswer parses an answer to a RouterProbe of this node and returns the node that answered.
func RouterAnswer(payload []byte, keys []Key, self forwarding.NodeID) (node forwarding.NodeID, nonce uint64, ok bool) {
	if len(payload) < messageSize {
		return 0, 0, false
	}
	m, ok := decode(payload[:messageSize], keys)
	if !ok || !m.isAnswer() || m.from != self || m.to == 0 {
		return 0, 0, false
	}
	return m.to, m.nonce, true
}
