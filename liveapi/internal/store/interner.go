// SPDX-License-Identifier: Apache-2.0

package store

// interner assigns numbers to values, from 1 on. Numbers of values without references are reused.
type interner[K comparable] struct {
	numbers    map[K]uint32
	values     []K
	references []uint32
	free       []uint32
}

func newInterner[K comparable]() interner[K] {
	return interner[K]{numbers: map[K]uint32{}, values: make([]K, 1), references: make([]uint32, 1)}
}

// acquire returns the number of a value, and adds a reference.
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

// release removes a reference.
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

// limit returns the upper bound of numbers, exclusive.
func (i *interner[K]) limit() int { return len(i.values) }
