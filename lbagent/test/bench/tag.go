// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

const (
	ownKey = 1
	// blindKey verifies received packets and ignores the words that differ between the flows of a case, so that
	// one tag is valid for all flows at the usual cost.
	blindKey = 2
)

// tunnelKeys returns keys that are used for sending and required.
func tunnelKeys(sending uint8) forwarding.TunnelKeys {
	return forwarding.TunnelKeys{
		Accepted: []forwarding.TunnelKey{
			{Number: ownKey, Secret: [forwarding.TunnelSecretSize]byte{1: 1}},
			{Number: blindKey, Secret: [forwarding.TunnelSecretSize]byte{2: 2}},
		},
		Sending: sending, Required: true,
	}
}

// Pairs of words in bpf/src/tunnel_tag.h: ports and sequence number, and each word of the client's and the
// VIP's address. The last IPv6 word differs between flows.
const (
	pairPorts    = 2
	pairAddress4 = 3
	pairAddress6 = 6
)

// setTunnelKeys writes the keys. A word of the blind key cancels the words paired with the ignored ones.
func (w *world) setTunnelKeys() error {
	if err := w.Plane.SetTunnelKeys(tunnelKeys(ownKey)); err != nil {
		return err
	}
	m, err := w.Map(bpf.DatapathMapTunnelKeys)
	if err != nil {
		return err
	}
	var key bpf.DatapathTunnelKey
	if err := m.Lookup(uint32(blindKey), &key); err != nil {
		return errors.Join(fmt.Errorf("read a key of tags: %w", err), m.Close())
	}
	var sequence [4]byte
	binary.BigEndian.PutUint32(sequence[:], clientSequence+1)
	for pair, beside := range map[int]uint32{
		pairPorts:    binary.NativeEndian.Uint32(sequence[:]),
		pairAddress4: rig.Words(families[0].vip)[3],
		pairAddress6: rig.Words(families[1].vip)[3],
	} {
		words := &key.Pair[pair].Word
		words[1], words[3] = -uint64(beside), -uint64(beside)
	}
	err = m.Put(uint32(blindKey), key)
	return errors.Join(err, m.Close())
}
