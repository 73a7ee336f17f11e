// SPDX-License-Identifier: Apache-2.0

// Package keyring turns the keys of the Secret into those of the data plane. It is pure.
package keyring

import (
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Number is that of a generation in packets. Generations that are in use at once follow each
// other, so they have different numbers.
func Number(generation uint32) uint8 {
	if generation == 0 {
		return 0
	}
	return uint8((generation-1)%forwarding.MaxTunnelKey) + 1
}

// Held are the keys that a node has.
type Held struct {
	Ring tunnelkey.Ring
	// tags are the keys for tags, by generation.
	tags map[uint32][forwarding.TunnelSecretSize]byte
}

// Restore returns what an agent before this one left in the data plane, which knows numbers
// only. A generation is found by its key in the State, which may be nil, or else among those
// that the node has reported. Where it is not found, it is taken for the first of its number.
func Restore(left forwarding.TunnelKeys, state *tunnelkey.State, reported []uint32) Held {
	held := Held{Ring: tunnelkey.Ring{Required: left.Required}, tags: map[uint32][forwarding.TunnelSecretSize]byte{}}
	for _, key := range left.Accepted {
		generation := uint32(key.Number)
		if i := slices.IndexFunc(reported, func(g uint32) bool { return Number(g) == key.Number }); i >= 0 {
			generation = reported[i]
		}
		if state != nil {
			for _, known := range state.Accepted {
				if Number(known.Generation) == key.Number && tag(known) == key.Secret {
					generation = known.Generation
				}
			}
		}
		held.tags[generation] = key.Secret
		if key.Number == left.Sending {
			held.Ring.Sending = generation
		}
	}
	held.Ring.Accepted = slices.Sorted(maps.Keys(held.tags))
	return held
}

func tag(key tunnelkey.Key) [forwarding.TunnelSecretSize]byte {
	return tunnelkey.Derive(key.Secret, tunnelkey.LabelTag)
}

// Adopt returns what the node is to have that reads a State.
func (h Held) Adopt(state *tunnelkey.State) Held {
	next := Held{tags: map[uint32][forwarding.TunnelSecretSize]byte{}}
	numbers := map[uint8]bool{}
	for _, key := range state.Accepted {
		next.tags[key.Generation] = tag(key)
		numbers[Number(key.Generation)] = true
	}
	// A number has room for one key: that of the Secret.
	kept := tunnelkey.Ring{Required: h.Ring.Required}
	for _, generation := range h.Ring.Accepted {
		if _, known := next.tags[generation]; known || !numbers[Number(generation)] {
			kept.Accepted = append(kept.Accepted, generation)
			if generation == h.Ring.Sending {
				kept.Sending = generation
			}
		}
	}
	next.Ring = tunnelkey.Adopt(kept, state)
	for _, generation := range next.Ring.Accepted {
		if _, known := next.tags[generation]; !known {
			next.tags[generation] = h.tags[generation]
		}
	}
	return next
}

// Equal reports whether two are the same.
func (h Held) Equal(other Held) bool {
	return h.Ring.Equal(other.Ring) && maps.Equal(h.tags, other.tags)
}

// Keys are those of the data plane.
func (h Held) Keys() forwarding.TunnelKeys {
	keys := forwarding.TunnelKeys{Sending: Number(h.Ring.Sending), Required: h.Ring.Required}
	for _, generation := range h.Ring.Accepted {
		keys.Accepted = append(keys.Accepted, forwarding.TunnelKey{Number: Number(generation), Secret: h.tags[generation]})
	}
	return keys
}
