// SPDX-License-Identifier: Apache-2.0

package tunnelkey

import (
	"slices"
)

// MaxAccepted is the maximum number of accepted keys: two during a rotation, and one more if the Secret was
// lost meanwhile.
const MaxAccepted = 3

// Ring is the state of a node's keys, identified by their generations.
type Ring struct {
	// Accepted are the accepted generations, sorted.
	Accepted []uint32
	// Sending is the generation of the key used for sending. With 0, packets have no tag.
	Sending uint32
	// Required is true if the node drops packets without the tag of an accepted key.
	Required bool
}

// Takes reports whether a node accepts a packet that was sent with a generation; 0 is a packet without a tag.
func (r Ring) Takes(generation uint32) bool {
	return !r.Required || slices.Contains(r.Accepted, generation)
}

// Equal reports whether r and other have equal fields.
func (r Ring) Equal(other Ring) bool {
	return r.Sending == other.Sending && r.Required == other.Required && slices.Equal(r.Accepted, other.Accepted)
}

// Adopt returns the next Ring of a node from its current one, which is zero after a boot, and the State in
// the Secret. Unless the phase is Steady, the node keeps its keys, so that no packet is dropped if the Secret
// was lost meanwhile.
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
		// Other nodes would drop packets without a tag from this new node.
		ring.Sending = state.Newest().Generation
	}
	if state.Phase != Steady && len(ring.Accepted) == 1 {
		// Other nodes may still send with a key that was in the lost Secret.
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
