// SPDX-License-Identifier: Apache-2.0

// Package tunnelkey defines the Secret with the keys that authenticate packets between nodes, and the rules
// by which agents apply it. It is pure.
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

// Namespace and name of the Secret, and its annotation.
const (
	Namespace  = "millrace-system"
	SecretName = "millrace-tunnel-key"
	// AnnotationRotate on the Secret millrace-tunnel-key requests a new key. Its value is ignored. The
	// operator removes it after generating the key. See docs/operate.md#the-key-of-the-tunnel.
	AnnotationRotate = "millrace.io/rotate"
)

// Labels for Derive. Each use has its own label, so that all uses have different keys.
const (
	// LabelTag is for the tags of encapsulated packets.
	LabelTag = "millrace tunnel tag"
	// LabelMembership is for the messages of the failure detector between nodes.
	LabelMembership = "millrace membership"
)

// Size is the size of a key in bytes.
const Size = 32

// Key is a secret with its generation. It is never printed: see Format.
type Key struct {
	// Generation increases with each new key; 0 means no key.
	Generation uint32
	Secret     [Size]byte
}

// New returns a random key with a generation.
func New(generation uint32) Key {
	key := Key{Generation: generation}
	// Read never returns an error; the program exits if the kernel has no random bytes.
	_, _ = rand.Read(key.Secret[:])
	return key
}

// Format prints the generation instead of the secret, for any verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "key %d", k.Generation) }

// MarshalText returns the generation instead of the secret, for JSON and structured logs.
func (k Key) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "key %d", k.Generation), nil }

// Derive derives a key of 32 bytes for one use of a secret by HKDF-SHA256 (RFC 5869) without salt.
func Derive(secret [Size]byte, label string) [Size]byte {
	derived, err := hkdf.Key(sha256.New, secret[:], nil, label, Size)
	if err != nil {
		// hkdf.Key fails only for lengths above 255 hashes.
		panic(err)
	}
	return [Size]byte(derived)
}

// Phase is the phase of a key rotation.
type Phase string

const (
	// Steady means that nodes accept only the keys of the State.
	Steady Phase = "Steady"
	// Publishing means that nodes start to accept the newest key, and no node sends with it.
	Publishing Phase = "Publishing"
	// Switching means that nodes start to send with the newest key.
	Switching Phase = "Switching"
)

// State is the content of the Secret.
type State struct {
	Phase Phase
	// Accepted are one or two keys, the newest last. Until the phase is Steady, nodes accept their previous
	// keys, too.
	Accepted []Key
	// Sending is the generation of the key used for sending; 0 means that nodes continue with their current
	// one.
	Sending uint32
	// Required makes nodes drop packets without a valid tag. Once it is set on a node, it remains set there
	// until the phase is Steady.
	Required bool
	// Seed is the seed of the flow hash, or zero. It does not change with the keys.
	Seed flowhash.Seed
	// Since is the start of the phase and Made the creation time of the newest key, both in whole seconds.
	Since, Made time.Time
}

// Newest returns the newest accepted key, or a zero Key.
func (s *State) Newest() Key {
	if len(s.Accepted) == 0 {
		return Key{}
	}
	return s.Accepted[len(s.Accepted)-1]
}

// Key returns the accepted key with a generation, if there is one.
func (s *State) Key(generation uint32) (Key, bool) {
	i := slices.IndexFunc(s.Accepted, func(key Key) bool { return key.Generation == generation })
	if i < 0 {
		return Key{}, false
	}
	return s.Accepted[i], true
}

// Equal reports whether s and other have equal fields.
func (s *State) Equal(other *State) bool {
	return s.Phase == other.Phase && s.Seed == other.Seed && s.Sending == other.Sending && s.Required == other.Required &&
		s.Since.Equal(other.Since) && s.Made.Equal(other.Made) && slices.Equal(s.Accepted, other.Accepted)
}
