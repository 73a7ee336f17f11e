// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"bytes"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"
)

// Secret is a random value. All replicas derive the same proxy secrets from it.
type Secret struct {
	// Day is the first day on which the secret seals, as 2006-01-02 (UTC).
	Day   string
	Value []byte
}

const (
	secretLength = 32
	// activationDelay is how early a secret is created, so that every proxy can open its tokens before
	// any seals one.
	activationDelay = 12 * time.Hour
)

func day(at time.Time) string { return at.UTC().Format(time.DateOnly) }

// renewSecrets returns the current secret and its predecessor or successor, sorted by day. Data sealed with
// older ones becomes unreadable.
func renewSecrets(secrets []Secret, now time.Time) ([]Secret, error) {
	if len(secrets) == 0 {
		made, err := newSecret(day(now))
		if err != nil {
			return nil, err
		}
		secrets = []Secret{made}
	}
	newest := secrets[len(secrets)-1]
	if newest.Day > day(now) || newest.Day == day(now.Add(activationDelay)) {
		return secrets, nil
	}
	// A late secret, after a time without a leader, also starts tomorrow.
	made, err := newSecret(day(now.Add(24 * time.Hour)))
	return []Secret{newest, made}, err
}

func newSecret(day string) (Secret, error) {
	made := Secret{Day: day, Value: make([]byte, secretLength)}
	if _, err := rand.Read(made.Value); err != nil {
		return Secret{}, fmt.Errorf("generate a secret: %w", err)
	}
	return made, nil
}

func equalSecrets(a, b []Secret) bool {
	return slices.EqualFunc(a, b, func(a, b Secret) bool { return a.Day == b.Day && bytes.Equal(a.Value, b.Value) })
}

// inUse returns the values of the secrets, today's first.
func inUse(secrets []Secret, now time.Time) [][]byte {
	var values [][]byte
	for _, secret := range secrets {
		if secret.Day <= day(now) {
			values = slices.Insert(values, 0, secret.Value)
		} else {
			values = append(values, secret.Value)
		}
	}
	return values
}

func derive(values [][]byte, owner string) ([][]byte, error) {
	derived := make([][]byte, 0, len(values))
	for _, value := range values {
		own, err := hkdf.Key(sha256.New, value, nil, "proxies of "+owner, secretLength)
		if err != nil {
			return nil, fmt.Errorf("derive a secret of %s: %w", owner, err)
		}
		derived = append(derived, own)
	}
	return derived, nil
}
