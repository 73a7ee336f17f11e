// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"errors"
	"fmt"
	"slices"
)

const (
	// MaxTunnelKey is the highest number of a TunnelKey. The lowest is 1.
	MaxTunnelKey = 4
	// TunnelSecretSize is the length of a TunnelKey's secret, in bytes.
	TunnelSecretSize = 32
	// maxAccepted is how many keys are valid at once: the old and the new one, and one more
	// where the Secret was lost between the two.
	maxAccepted = 3
)

// TunnelKey is a key that packets between nodes are tagged with. The number travels in the
// packet.
type TunnelKey struct {
	// Number is from 1 to MaxTunnelKey.
	Number uint8
	Secret [TunnelSecretSize]byte
}

// String hides the secret.
func (k TunnelKey) String() string { return fmt.Sprintf("tunnel key %d", k.Number) }

// GoString hides the secret.
func (k TunnelKey) GoString() string { return k.String() }

// TunnelKeys are the keys of a node. The zero value has none: nothing is tagged, and no tag is
// asked for.
type TunnelKeys struct {
	// Accepted are the keys that nodes may tag with: at most three, with different numbers.
	Accepted []TunnelKey
	// Sending is the number of the accepted key that this node tags with. Zero means none.
	Sending uint8
	// Required drops what nodes send without a tag, or with the tag of another key. It needs an
	// accepted key.
	Required bool
}

// Check returns what is wrong with the keys.
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
		return fmt.Errorf("tunnel key %d is to tag with, but is not accepted", k.Sending)
	}
	if k.Required && len(k.Accepted) == 0 {
		return errors.New("tags are required, but no tunnel key is accepted")
	}
	return nil
}

func (k TunnelKeys) accepts(number uint8) bool {
	return slices.ContainsFunc(k.Accepted, func(key TunnelKey) bool { return key.Number == number })
}
