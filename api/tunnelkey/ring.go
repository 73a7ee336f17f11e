// SPDX-License-Identifier: Apache-2.0

package tunnelkey

import (
	"slices"
)

// MaxAccepted is how many keys a node holds: two while one follows another, and one more
// where the Secret was lost meanwhile.
const MaxAccepted = 3

// Ring is what a node does, by generations.
type Ring struct {
	// Accepted are sorted.
	Accepted []uint32
	// Sending is the generation with which the node sends. Zero: without a tag.
	Sending uint32
	// Required refuses what has no tag, or one of another key.
	Required bool
}

// Takes reports whether a node takes what was sent with a generation, zero for no tag.
func (r Ring) Takes(generation uint32) bool {
	return !r.Required || slices.Contains(r.Accepted, generation)
}

// Equal reports whether two Rings are the same.
func (r Ring) Equal(other Ring) bool {
	return r.Sending == other.Sending && r.Required == other.Required && slices.Equal(r.Accepted, other.Accepted)
}

// Adopt returns what a node does that has a Ring, zero after its boot, and reads a State.
//
// What a node has stays until the phase is Steady. So it may be that the State does not know
// the keys in use, as after a loss of the Secret, and no packet is refused for that.
func Adopt(has Ring, state *State) Ring {
	ring := Ring{Sending: state.Sending, Required: state.Required}
	for _, key := range state.Accepted {
		ring.Accepted = append(ring.Accepted, key.Generation)
	}
	if state.Phase != Steady {
		ring.Required = ring.Required || has.Required
		ring.keep(has)
	}
	if ring.Sending == 0 {
		ring.Sending = has.Sending
	}
	if ring.Sending == 0 && ring.Required {
		// Nobody takes what this node, which is new, would send without a tag.
		ring.Sending = state.Newest().Generation
	}
	if state.Phase != Steady && len(ring.Accepted) == 1 {
		// Others may still send with a key that was lost.
		ring.Required = false
	}
	slices.Sort(ring.Accepted)
	return ring
}

// keep accepts what a node has, the key that it sends with first, as far as there is room.
func (r *Ring) keep(has Ring) {
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
