// SPDX-License-Identifier: Apache-2.0

package store

// interner maps values to numbers from 1, counts references, and reuses the numbers of values without
// references.
type interner[K comparable] struct {
	numbers    map[K]uint32
	values     []K
	references []uint32
	free       []uint32
}

func newInterner[K comparable]() interner[K] {
	return interner[K]{numbers: map[K]uint32{}, values: make([]K, 1), references: make([]uint32, 1)}
}

func (i *interner[K]) acquire(value K) uint32 {
	number, ok := i.numbers[value]
	if !ok {
		if last := len(i.free) - 1; last >= 0 {
			number, i.free = i.free[last], i.free[:last]
			i.values[number] = value
		} else {
			number = uint32(len(i.values))
			i.values, i.references = append(i.values, value), append(i.references, 0)
		}
		i.numbers[value] = number
	}
	i.references[number]++
	return number
}

func (i *interner[K]) release(number uint32) {
	i.references[number]--
	if i.references[number] > 0 {
		return
	}
	var none K
	delete(i.numbers, i.values[number])
	i.values[number] = none
	i.free = append(i.free, number)
}

func (i *interner[K]) limit() int { return len(i.values) }
