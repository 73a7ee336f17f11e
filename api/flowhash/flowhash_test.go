// SPDX-License-Identifier: Apache-2.0

package flowhash

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"
	"testing"
)

func repeated(b byte) (seed Seed) {
	for i := range seed {
		seed[i] = b
	}
	return seed
}

func roots() (roots [11]uint64) {
	for i, prime := range []int64{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31} {
		root := new(big.Int).Sqrt(new(big.Int).Lsh(big.NewInt(prime), 128))
		roots[i] = new(big.Int).And(root, new(big.Int).SetUint64(math.MaxUint64)).Uint64()
	}
	return roots
}

// TestConstants checks that all versions derive the same constants. The constants of the seeded row were
// computed by another program.
func TestConstants(t *testing.T) {
	r := roots()
	for _, test := range []struct {
		name        string
		seed        Seed
		want        Constants
		description string
	}{
		{"none", Seed{}, Constants{[4]uint64(r[:4]), [4]uint64(r[4:8]), r[8], r[9], r[10], 0}, "none"},
		{"0b", repeated(0x0b), Constants{
			Client:   [4]uint64{0x40106f83c315db33, 0x25382386cb65aab3, 0xf6c9b5402ddfa827, 0xfc4fd4c7f458560f},
			VIP:      [4]uint64{0x2d36677c631a1cb3, 0x3a9dd8a5e234cf07, 0x3ac9c24635eae4c3, 0x8b919efa125b593f},
			Ports:    0x1d5d4058a0862793,
			Protocol: 0x3081a404292ab9a9,
			Frontend: 0x1667393d5864a10b,
			Addend:   0x090de251a381650a,
		}, "dfc8c8c3"},
	} {
		if got := test.seed.Constants(); got != test.want {
			t.Errorf("%s: %#x, want %#x", test.name, got, test.want)
		}
		if got := test.seed.Name(); got != test.description {
			t.Errorf("%s: the name is %s, want %s", test.name, got, test.description)
		}
	}
}

func TestMultipliers(t *testing.T) {
	seen := map[uint64]Seed{}
	for range 1000 {
		seed := NewSeed()
		c := seed.Constants()
		for _, multiplier := range c.multipliers() {
			if other, twice := seen[*multiplier]; twice || *multiplier%2 == 0 {
				t.Errorf("%v has the multiplier %#x, which %v has, or which is even", seed, *multiplier, other)
			}
			seen[*multiplier] = seed
		}
		if len(c.multipliers()) != len(slices.Concat(c.Client[:], c.VIP[:]))+3 {
			t.Fatal("a multiplier is not looked at")
		}
	}
}

func TestSeedIsNotPrinted(t *testing.T) {
	seed := repeated('s')
	type config struct{ Seed Seed }
	var texts []string
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
		texts = append(texts, fmt.Sprintf(verb, seed), fmt.Sprintf(verb, config{seed}), fmt.Sprintf(verb, []Seed{seed}))
	}
	encoded, err := json.Marshal(config{seed})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range append(texts, string(encoded)) {
		if !strings.Contains(text, "seed "+seed.Name()) {
			t.Errorf("printed %s, want the name alone", text)
		}
		for _, form := range []string{"sss", "737373", "115 115", "115,115", "0x73", "c3Nz"} {
			if strings.Contains(text, form) {
				t.Errorf("printed: %s", text)
			}
		}
	}
}
