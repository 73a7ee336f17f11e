// SPDX-License-Identifier: Apache-2.0

// Package flowhash provides the constants of the hash that selects the row, node and endpoint of a flow
// (bpf/src/hash.h). They are the same on all nodes. The package is pure.
package flowhash

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// SeedSize is the length of a Seed in bytes.
const SeedSize = 32

// Seed is the secret for deriving the constants. With it, an attacker could choose flows that share a row.
// The zero value selects the public constants. It is never printed: see Format.
type Seed [SeedSize]byte

// NewSeed returns a random seed.
func NewSeed() Seed {
	var seed Seed
	// Read never returns an error; the program exits if the kernel has no random bytes.
	_, _ = rand.Read(seed[:])
	return seed
}

// Constants are the multipliers for the words of a flow, and an addend.
type Constants struct {
	// Client and VIP multiply the words of the addresses; an IPv4 address is the last word.
	Client, VIP [4]uint64
	// Ports multiplies the two ports, with the client's port in the lower half; Protocol multiplies the IP
	// protocol.
	Ports, Protocol uint64
	// Frontend multiplies port and protocol in the hash of an IPv6 frontend.
	Frontend uint64
	Addend   uint64
}

// Public returns the public constants: the first bits of the square roots of primes, as in FIPS 180-4,
// section 5.3.
func Public() Constants {
	return Constants{
		Client:   [4]uint64{0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1},
		VIP:      [4]uint64{0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179},
		Ports:    0xcbbb9d5dc1059ed8,
		Protocol: 0x629a292a367cd507,
		Frontend: 0x9159015a3070dd17,
	}
}

// HKDF labels for the uses of a seed. They must be the same in all versions.
const (
	useConstants = "millrace flow hash 1"
	useName      = "millrace flow hash name 1"
)

// Constants derives the constants by HKDF-SHA256 (RFC 5869). All multipliers are secret, because with a
// secret addend alone, flows with equal sums would remain equal. Multipliers are odd, so that no bit of a
// word is lost.
func (s Seed) Constants() Constants {
	if s == (Seed{}) {
		return Public()
	}
	var c Constants
	// Decode fails only for types without a fixed size.
	if _, err := binary.Decode(s.derive(useConstants, binary.Size(c)), binary.LittleEndian, &c); err != nil {
		panic(err)
	}
	for _, multiplier := range c.multipliers() {
		*multiplier |= 1
	}
	return c
}

func (c *Constants) multipliers() []*uint64 {
	all := []*uint64{&c.Ports, &c.Protocol, &c.Frontend}
	for i := range c.Client {
		all = append(all, &c.Client[i], &c.VIP[i])
	}
	return all
}

func (s Seed) derive(use string, size int) []byte {
	derived, err := hkdf.Key(sha256.New, s[:], nil, use, size)
	if err != nil {
		// hkdf.Key fails only for lengths above 255 hashes.
		panic(err)
	}
	return derived
}

// Name returns a public identifier of the seed: eight hexadecimal digits, or "none".
func (s Seed) Name() string {
	if s == (Seed{}) {
		return "none"
	}
	return hex.EncodeToString(s.derive(useName, 4))
}

// Format prints the name instead of the seed, for any verb.
func (s Seed) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "seed %s", s.Name()) }

// MarshalText returns the name instead of the seed, for JSON and structured logs.
func (s Seed) MarshalText() ([]byte, error) { return []byte("seed " + s.Name()), nil }
