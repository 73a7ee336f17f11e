// SPDX-License-Identifier: Apache-2.0

// Package tunnelkey is what operator and agents agree on about the keys with which nodes
// authenticate what they send each other: how the Secret is written, and what an agent makes
// of it. It is pure.
package tunnelkey

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/api/flowhash"
)

// The Secret that has the State.
const (
	Namespace  = "millrace-system"
	SecretName = "millrace-tunnel-key"
	// AnnotationRotate asks, on the Secret millrace-tunnel-key, for a new key. Its value does not
	// matter. The operator removes it when it has made the key. See
	// docs/operate.md#the-key-of-the-tunnel.
	AnnotationRotate = "millrace.io/rotate"
)

// Labels for Derive: one for each use, so that no two uses have one key.
const (
	// LabelTag is for the tags of encapsulated packets.
	LabelTag = "millrace tunnel tag"
	// LabelMembership is for the messages by which nodes watch each other.
	LabelMembership = "millrace membership"
)

// Size of a key's secret, in bytes.
const Size = 32

// Key is a secret and its number. It is never printed: see Format.
type Key struct {
	// Generation is larger for later keys. Zero is none.
	Generation uint32
	Secret     [Size]byte
}

// New makes a key of random bytes.
func New(generation uint32) Key {
	key := Key{Generation: generation}
	// It never fails: the program ends where the kernel has no random bytes.
	_, _ = rand.Read(key.Secret[:])
	return key
}

// Format keeps the secret out of whatever prints a key, with any verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "key %d", k.Generation) }

// MarshalText keeps it out of JSON and of structured logs.
func (k Key) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "key %d", k.Generation), nil }

// Derive returns 32 bytes for one use of a secret (RFC 5869, HKDF-SHA256, without salt).
func Derive(secret [Size]byte, label string) [Size]byte {
	derived, err := hkdf.Key(sha256.New, secret[:], nil, label, Size)
	if err != nil {
		// Only for lengths beyond 255 hashes.
		panic(err)
	}
	return [Size]byte(derived)
}

// Phase is where a change of keys stands.
type Phase string

// Phases.
const (
	// Steady: the accepted keys are those of the State, and no others.
	Steady Phase = "Steady"
	// Publishing: nodes learn to accept the newest key. None sends with it.
	Publishing Phase = "Publishing"
	// Switching: nodes begin to send with the newest key.
	Switching Phase = "Switching"
)

// State is what the Secret says.
type State struct {
	Phase Phase
	// Accepted are one or two keys, the newest last. Beside them, nodes that are not in phase
	// Steady accept those that they have.
	Accepted []Key
	// Sending is the generation to send with. Zero: that with which a node sends, if any.
	Sending uint32
	// Required makes nodes refuse what has no tag. Nodes that have it keep it until Steady.
	Required bool
	// Seed is that of the flow hash, zero where there is none. It never changes with the keys.
	Seed flowhash.Seed
	// Since is when the phase began, Made when the newest key was made. To the second.
	Since, Made time.Time
}

// Newest is the key that was made last.
func (s *State) Newest() Key {
	if len(s.Accepted) == 0 {
		return Key{}
	}
	return s.Accepted[len(s.Accepted)-1]
}

// Key returns the key of a generation.
func (s *State) Key(generation uint32) (Key, bool) {
	i := slices.IndexFunc(s.Accepted, func(key Key) bool { return key.Generation == generation })
	if i < 0 {
		return Key{}, false
	}
	return s.Accepted[i], true
}

// Equal reports whether two States say the same.
func (s *State) Equal(other *State) bool {
	return s.Phase == other.Phase && s.Seed == other.Seed && s.Sending == other.Sending && s.Required == other.Required &&
		s.Since.Equal(other.Since) && s.Made.Equal(other.Made) && slices.Equal(s.Accepted, other.Accepted)
}
