// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// secrets are the immutable secrets shared by all proxies of an owner (resource.SharedSecret).
type secrets struct {
	values [][]byte
	// ciphers are for session tokens. The first one seals, all of them open.
	ciphers []cipher.AEAD
}

func newSecrets(values [][]byte) (*secrets, error) {
	s := &secrets{values: values}
	for _, value := range values {
		key, err := hkdf.Key(sha256.New, value, nil, "session persistence", 32)
		if err != nil {
			return s, fmt.Errorf("derive a key for session persistence: %w", err)
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return s, fmt.Errorf("use a key for session persistence: %w", err)
		}
		// Random nonces are safe: a key is used for two days, far below 2^32 sessions.
		seal, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return s, fmt.Errorf("use a key for session persistence: %w", err)
		}
		s.ciphers = append(s.ciphers, seal)
	}
	return s, nil
}

func (b *builder) makeSecrets() {
	if b.old.secrets != nil && !isKindChanged(b, (*resource.Resource).GetSharedSecret) {
		b.table.secrets = b.old.secrets
		return
	}
	values := b.secretValues()
	if len(values) == 0 {
		values = [][]byte{b.secret}
	}
	if b.old.secrets != nil && slices.EqualFunc(values, b.old.secrets.values, bytes.Equal) {
		// Keep the pointer, because listeners detect changes by comparing it.
		b.table.secrets = b.old.secrets
		return
	}
	made, err := newSecrets(values)
	if err != nil {
		b.table.addError("shared secret", err)
	}
	b.table.secrets = made
}

// secretValues prefers the existing one of two resources.
func (b *builder) secretValues() (values [][]byte) {
	var names []string
	for name, r := range b.table.resources {
		if r.GetSharedSecret() != nil {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, b.previousFirst)
	for i, name := range names {
		if i > 0 {
			b.table.addError(name, errors.New("there are two shared secrets"))
			continue
		}
		for _, value := range b.table.resources[name].GetSharedSecret().GetValues() {
			if len(value) < 32 {
				b.table.addError(name, fmt.Errorf("a secret of %d bytes is too short", len(value)))
				continue
			}
			values = append(values, value)
		}
	}
	return values
}
