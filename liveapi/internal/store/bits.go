// SPDX-License-Identifier: Apache-2.0

package store

import "math/bits"

type bitset []uint64

func (b *bitset) set(number int) {
	for len(*b) <= number/64 {
		*b = append(*b, 0)
	}
	(*b)[number/64] |= 1 << (number % 64)
}

func (b bitset) clear(number int) {
	if number/64 < len(b) {
		b[number/64] &^= 1 << (number % 64)
	}
}

func (b *bitset) add(others bitset) {
	for len(*b) < len(others) {
		*b = append(*b, 0)
	}
	for i, word := range others {
		(*b)[i] |= word
	}
}

func (b bitset) common(others bitset) int {
	count := 0
	for i := range min(len(b), len(others)) {
		count += bits.OnesCount64(b[i] & others[i])
	}
	return count
}
