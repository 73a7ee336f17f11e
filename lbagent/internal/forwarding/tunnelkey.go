// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"errors"
	"fmt"
	"slices"
)

// Limits of tunnel keys.
const (
	// MaxTunnelKey is the highest number of a TunnelKey; the lowest is 1.
	MaxTunnelKey     = 4
	TunnelSecretSize = 32
	// maxAccepted allows an old and a new key, and one more if the Secret was lost in between.
	maxAccepted = 3
)

// TunnelKey is a key for the tags of packets between nodes. The packet contains its number.
type TunnelKey struct {
	Number uint8
	Secret [TunnelSecretSize]byte
}

// String omits the secret.
func (k TunnelKey) String() string { return fmt.Sprintf("tunnel key %d", k.Number) }

// GoString omits the secret.
func (k TunnelKey) GoString() string { return k.String() }

// TunnelKeys are the keys of a node. The zero value disables tags.
type TunnelKeys struct {
	// Accepted are the keys for verification: at most three, with different numbers.
	Accepted []TunnelKey
	// Sending is the number of the accepted key for sent packets; zero disables tags.
	Sending uint8
	// Required drops packets from nodes with a missing or invalid tag. It needs an accepted key.
	Required bool
}

// Check validates the keys.
func (k TunnelKeys) Check() error {
	if len(k.Accepted) > maxAccepted {
		return fmt.Errorf("%d tunnel keys at once, want at most %d", len(k.Accepted), maxAccepted)
	}
	for i, key := range k.Accepted {
		if key.Number < 1 || key.Number > MaxTunnelKey {
			return fmt.Errorf("tunnel key has number %d, want 1 to %d", key.Number, MaxTunnelKey)
		}
		if key.Secret == ([TunnelSecretSize]byte{}) {
			return fmt.Errorf("tunnel key %d has a secret of zeros", key.Number)
		}
		if slices.ContainsFunc(k.Accepted[:i], func(other TunnelKey) bool { return other.Number == key.Number }) {
			return fmt.Errorf("two tunnel keys have number %d", key.Number)
		}
	}
	if k.Sending != 0 && !k.accepts(k.Sending) {
		return fmt.Errorf("tunnel key %d is used for sending, but is not accepted", k.Sending)
	}
	if k.Required && len(k.Accepted) == 0 {
		return errors.New("tags are required, but no tunnel key is accepted")
	}
	return nil
}

func (k TunnelKeys) accepts(number uint8) bool {
	return slices.ContainsFunc(k.Accepted, func(key TunnelKey) bool { return key.Number == number })
}
