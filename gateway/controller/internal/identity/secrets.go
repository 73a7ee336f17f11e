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

// Secret is what secrets of proxies are derived from. All replicas read the same ones, and derive
// the same secrets.
type Secret struct {
	// Day is the one from which it comes first, as 2006-01-02 (UTC).
	Day string
	// Value is random.
	Value []byte
}

const (
	secretLength = 32
	// lead is how long before its day a secret is made. So each proxy opens what it seals before
	// any of them seals with it.
	lead = 12 * time.Hour
)

func day(at time.Time) string { return at.UTC().Format(time.DateOnly) }

// renewSecrets are the secrets as they have to be now, sorted by day: one whose day has come, and the
// previous or the next. What is older is forgotten, so that nobody can read what was sealed with it.
func renewSecrets(secrets []Secret, now time.Time) ([]Secret, error) {
	if len(secrets) == 0 {
		made, err := newSecret(day(now))
		if err != nil {
			return nil, err
		}
		secrets = []Secret{made}
	}
	newest := secrets[len(secrets)-1]
	if newest.Day > day(now) || newest.Day == day(now.Add(lead)) {
		return secrets, nil
	}
	// One that is late, since nobody led for a while, is for tomorrow, too.
	made, err := newSecret(day(now.Add(24 * time.Hour)))
	return []Secret{newest, made}, err
}

func newSecret(day string) (Secret, error) {
	made := Secret{Day: day, Value: make([]byte, secretLength)}
	if _, err := rand.Read(made.Value); err != nil {
		return Secret{}, fmt.Errorf("draw a secret: %w", err)
	}
	return made, nil
}

func equalSecrets(a, b []Secret) bool {
	return slices.EqualFunc(a, b, func(a, b Secret) bool { return a.Day == b.Day && bytes.Equal(a.Value, b.Value) })
}

// inUse are the values of secrets, first the one of today.
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

// derive gives an owner its own secrets.
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
