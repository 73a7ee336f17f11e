// SPDX-License-Identifier: Apache-2.0

// Package keyring converts the keys of the Secret into those of the data plane. It is pure.
package keyring

import (
	"maps"
	"slices"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Number returns the number of a generation in packets. Generations in use are consecutive, so their
// numbers differ.
func Number(generation uint32) uint8 {
	if generation == 0 {
		return 0
	}
	return uint8((generation-1)%forwarding.MaxTunnelKey) + 1
}

// NodeKeys are the keys of a node.
type NodeKeys struct {
	Ring tunnelkey.Ring
	tags map[uint32][forwarding.TunnelSecretSize]byte
}

// Restore derives the held keys from the data plane, which stores only numbers. It finds the generation by
// the key in state, which may be nil, then by the reported generations, and otherwise assumes the first one
// with that number.
func Restore(left forwarding.TunnelKeys, state *tunnelkey.State, reported []uint32) NodeKeys {
	held := NodeKeys{Ring: tunnelkey.Ring{Required: left.Required}, tags: map[uint32][forwarding.TunnelSecretSize]byte{}}
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

// Adopt returns the keys after the node has read state.
func (h NodeKeys) Adopt(state *tunnelkey.State) NodeKeys {
	next := NodeKeys{tags: map[uint32][forwarding.TunnelSecretSize]byte{}}
	numbers := map[uint8]bool{}
	for _, key := range state.Accepted {
		next.tags[key.Generation] = tag(key)
		numbers[Number(key.Generation)] = true
	}
	// Each number identifies one key, and the Secret's wins.
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

// Equal reports whether two sets of keys are equal.
func (h NodeKeys) Equal(other NodeKeys) bool {
	return h.Ring.Equal(other.Ring) && maps.Equal(h.tags, other.tags)
}

// Keys returns the keys in the data plane's format.
func (h NodeKeys) Keys() forwarding.TunnelKeys {
	keys := forwarding.TunnelKeys{Sending: Number(h.Ring.Sending), Required: h.Ring.Required}
	for _, generation := range h.Ring.Accepted {
		keys.Accepted = append(keys.Accepted, forwarding.TunnelKey{Number: Number(generation), Secret: h.tags[generation]})
	}
	return keys
}
