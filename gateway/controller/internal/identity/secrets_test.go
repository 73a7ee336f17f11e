// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"bytes"
	"slices"
	"testing"
	"time"
)

// TestSecretsOfAMonth renews hourly for a month with two replicas an hour apart. Each secret seals for a day,
// both replicas open each other's tokens, and the leader writes once a day.
func TestSecretsOfAMonth(t *testing.T) {
	now := time.Date(2026, 2, 1, 15, 0, 0, 0, time.UTC)
	secrets, err := renewSecrets(nil, now)
	// In the afternoon the secret of the next day is created immediately, which saves a second write.
	if err != nil || len(secrets) != 2 || len(secrets[0].Value) != secretLength {
		t.Fatalf("initial secrets = %v: %v", secrets, err)
	}
	writes, sealed := 0, map[string]int{}
	behind := inUse(secrets, now)
	for range 30 * 24 {
		now = now.Add(time.Hour)
		renewed, err := renewSecrets(secrets, now)
		if err != nil {
			t.Fatal(err)
		}
		if !equalSecrets(renewed, secrets) {
			writes++
		}
		secrets = renewed
		current := inUse(secrets, now)
		if len(current) > 2 || now.Day() > 2 && len(current) != 2 {
			t.Fatalf("%s: %d secrets are valid", now, len(current))
		}
		if !contains(behind, current[0]) || !contains(current, behind[0]) {
			t.Fatalf("%s: secrets of an outdated and a current proxy do not overlap", now)
		}
		sealed[string(current[0])]++
		behind = current
	}
	if writes != 30 || len(sealed) != 31 {
		t.Errorf("%d writes and %d secrets within 30 days", writes, len(sealed))
	}
}

func contains(values [][]byte, value []byte) bool {
	return slices.ContainsFunc(values, func(v []byte) bool { return bytes.Equal(v, value) })
}

// TestSecretsAfterAPause checks that the old secret seals until all proxies have the next one.
func TestSecretsAfterAPause(t *testing.T) {
	now := time.Date(2026, 2, 1, 3, 0, 0, 0, time.UTC)
	secrets := []Secret{{"2026-01-24", bytes.Repeat([]byte{1}, 32)}, {"2026-01-25", bytes.Repeat([]byte{2}, 32)}}
	renewed, err := renewSecrets(secrets, now)
	if err != nil || len(renewed) != 2 || renewed[0].Day != "2026-01-25" || renewed[1].Day != "2026-02-02" {
		t.Fatalf("renewed secrets = %v: %v", renewed, err)
	}
	if first := inUse(renewed, now)[0]; !bytes.Equal(first, secrets[1].Value) {
		t.Error("a new secret is used for sealing although proxies have just received it")
	}
}

// TestDerive checks that replicas derive the same secret, and a different one per owner.
func TestDerive(t *testing.T) {
	values := [][]byte{bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)}
	one, err := derive(values, "Gateway/a/edge")
	if err != nil {
		t.Fatal(err)
	}
	same, _ := derive(values, "Gateway/a/edge")
	other, _ := derive(values, "Gateway/b/edge")
	if len(one) != 2 || !slices.EqualFunc(one, same, bytes.Equal) || contains(other, one[0]) || contains(one, values[0]) || bytes.Equal(one[0], one[1]) {
		t.Errorf("derived %x, then %x, for another Gateway %x", one, same, other)
	}
}

func TestSecretsAreKept(t *testing.T) {
	secrets := []Secret{{"2026-02-01", bytes.Repeat([]byte{1}, 32)}, {"2026-02-02", bytes.Repeat([]byte{2}, 32)}}
	if got := read(data(Bundle{Secrets: secrets})).Secrets; !equalSecrets(got, secrets) {
		t.Errorf("read %v; want %v", got, secrets)
	}
}
