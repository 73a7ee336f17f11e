// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// tagPurpose is the info parameter of HKDF (RFC 5869, section 3.2), equal on all nodes.
const tagPurpose = "millrace tunnel tag 1"

// Constants shared by the programs and package forwarding: a difference does not compile.
var (
	_ = [1]struct{}{}[bpf.DatapathShapeTUNNEL_KEYS-forwarding.MaxTunnelKey]
	_ = [1]struct{}{}[bpf.DatapathShapeTUNNEL_SECRET-forwarding.TunnelSecretSize]
)

// expandKey derives the hash keys of the programs from a secret by HKDF-SHA256, followed by the secret.
func expandKey(secret [forwarding.TunnelSecretSize]byte) (bpf.DatapathTunnelKey, error) {
	var out bpf.DatapathTunnelKey
	stream, err := hkdf.Key(sha256.New, secret[:], nil, tagPurpose, binary.Size(out)-len(secret))
	if err != nil {
		return out, fmt.Errorf("expand the secret of a tunnel key: %w", err)
	}
	if _, err := binary.Decode(append(stream, secret[:]...), binary.LittleEndian, &out); err != nil {
		return out, fmt.Errorf("expand the secret of a tunnel key: %w", err)
	}
	return out, nil
}

// SetTunnelKeys replaces the keys of the tags of packets between nodes. They remain in the maps when the
// process ends. A number must not be assigned another secret while nodes use it.
func (d *Dataplane) SetTunnelKeys(keys forwarding.TunnelKeys) error {
	if err := keys.Check(); err != nil {
		return fmt.Errorf("set the tunnel keys: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	policy := d.tunnelPolicy
	policy.Flags &^= uint32(bpf.DatapathTunnelPolicyFlagPOLICY_TAGS | bpf.DatapathTunnelPolicyFlagPOLICY_KEYS)
	if keys.Required {
		policy.Flags |= uint32(bpf.DatapathTunnelPolicyFlagPOLICY_TAGS)
	}
	var expanded [forwarding.MaxTunnelKey + 1]bpf.DatapathTunnelKey
	for _, key := range keys.Accepted {
		words, err := expandKey(key.Secret)
		if err != nil {
			return err
		}
		expanded[key.Number] = words
		policy.Flags |= uint32(bpf.DatapathTunnelPolicyFlagPOLICY_KEY) << key.Number
		if err := d.writeTunnelKey(key.Number, words); err != nil {
			return err
		}
	}
	if err := d.writeTunnelPolicy(policy); err != nil {
		return err
	}
	settings := d.self
	const key = uint32(bpf.DatapathSelfFlagSELF_KEY)
	settings.Flags = settings.Flags%key + key*uint32(keys.Sending)
	if err := d.writeSettings(settings); err != nil {
		return err
	}
	// Retired keys are wiped once they are unused.
	for number := uint8(1); number <= forwarding.MaxTunnelKey; number++ {
		if err := d.writeTunnelKey(number, expanded[number]); err != nil {
			return err
		}
	}
	return nil
}

func (d *Dataplane) writeTunnelKey(number uint8, key bpf.DatapathTunnelKey) error {
	if d.tunnelKeys[number] == key {
		return nil
	}
	if err := write(d.maps.TunnelKeys, bpf.DatapathMapTunnelKeys, number, uint32(number), key); err != nil {
		return err
	}
	d.tunnelKeys[number] = key
	return nil
}

func (d *Dataplane) restoreTunnelKeys() error {
	err := readMap(d.maps.TunnelKeys, func(number uint32, key bpf.DatapathTunnelKey) { d.tunnelKeys[number] = key })
	if err != nil {
		return fmt.Errorf("read map %s: %w", bpf.DatapathMapTunnelKeys, err)
	}
	return nil
}

// TunnelKeys returns the current keys, which a previous process may have set.
func (d *Dataplane) TunnelKeys() forwarding.TunnelKeys {
	d.mu.Lock()
	defer d.mu.Unlock()
	keys := forwarding.TunnelKeys{
		Sending:  uint8(d.self.Flags / uint32(bpf.DatapathSelfFlagSELF_KEY)),
		Required: d.tunnelPolicy.Flags&uint32(bpf.DatapathTunnelPolicyFlagPOLICY_TAGS) != 0,
	}
	for number := uint8(1); number <= forwarding.MaxTunnelKey; number++ {
		if d.tunnelPolicy.Flags&(uint32(bpf.DatapathTunnelPolicyFlagPOLICY_KEY)<<number) != 0 {
			keys.Accepted = append(keys.Accepted, forwarding.TunnelKey{Number: number, Secret: d.tunnelKeys[number].Secret})
		}
	}
	return keys
}
