// SPDX-License-Identifier: Apache-2.0

package tunnelkey

import (
	"slices"
)

// MaxAccepted is two keys during a rotation, and one more if the Secret was lost meanwhile.
const MaxAccepted = 3

// Ring is the state of a node's keys, by generations.
type Ring struct {
	// Accepted are sorted.
	Accepted []uint32
	// Sending is the generation used for sending. Zero: packets have no tag.
	Sending uint32
	// Required is true if packets without a tag, or with one of another key, are dropped.
	Required bool
}

// Takes reports whether a node accepts a packet sent with a generation, zero for no tag.
func (r Ring) Takes(generation uint32) bool {
	return !r.Required || slices.Contains(r.Accepted, generation)
}

// Equal reports whether two Rings are the same.
func (r Ring) Equal(other Ring) bool {
	return r.Sending == other.Sending && r.Required == other.Required && slices.Equal(r.Accepted, other.Accepted)
}

// Adopt returns the next Ring of a node, whose previous one is zero after a boot. Until the phase is Steady
// the node keeps its keys, so if the Secret was lost meanwhile, no packet is dropped.
func Adopt(has Ring, state *State) Ring {
	ring := Ring{Sending: state.Sending, Required: state.Required}
	for _, key := range state.Accepted {
		ring.Accepted = append(ring.Accepted, key.Generation)
	}
	if state.Phase != Steady {
		ring.Required = ring.Required || has.Required
		ring.retain(has)
	}
	if ring.Sending == 0 {
		ring.Sending = has.Sending
	}
	if ring.Sending == 0 && ring.Required {
		// Other nodes would drop packets of this new node without a tag.
		ring.Sending = state.Newest().Generation
	}
	if state.Phase != Steady && len(ring.Accepted) == 1 {
		// Other nodes may still send with a key that was lost.
		ring.Required = false
	}
	slices.Sort(ring.Accepted)
	return ring
}

func (r *Ring) retain(has Ring) {
	previous := slices.Clone(has.Accepted)
	slices.SortFunc(previous, func(a, b uint32) int { return int(int64(b) - int64(a)) })
	if has.Sending != 0 {
		previous = append([]uint32{has.Sending}, previous...)
	}
	for _, generation := range previous {
		if len(r.Accepted) < MaxAccepted && !slices.Contains(r.Accepted, generation) {
			r.Accepted = append(r.Accepted, generation)
		}
	}
}
