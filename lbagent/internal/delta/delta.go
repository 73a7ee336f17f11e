// SPDX-License-Identifier: Apache-2.0

// Package delta finds what changed between two lists of the same objects. Objects are pointers
// that are shared and never changed, so the same pointer is the same object. It is pure.
package delta

import (
	"reflect"
	"slices"
)

// few are compared one by one.
const few = 8

// Between returns the objects that are in one of two lists only: those that came with after, and
// those that went with before. Each list names an object once; the zero T is no object. It costs by
// the length of the lists where objects keep their places, and nothing where they are one list.
func Between[T comparable](before, after []T) (came, went []T) {
	if IsSame(before, after) {
		return nil, nil
	}
	both := min(len(before), len(after))
	for i := range both {
		if before[i] != after[i] {
			came, went = append(came, after[i]), append(went, before[i])
		}
	}
	came, went = append(came, after[both:]...), append(went, before[both:]...)
	return without(came, went), without(went, came)
}

// IsSame reports whether two lists are one, in memory. Such lists are equal, since nobody changes
// one.
func IsSame[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// IsSameMap reports whether two maps are one, in memory.
func IsSameMap[K comparable, V any](a, b map[K]V) bool {
	return reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer()
}

// without returns the elements that are not among others, without zero ones.
func without[T comparable](list, others []T) []T {
	if len(list) == 0 {
		return nil
	}
	isOther := func(object T) bool { return slices.Contains(others, object) }
	if len(others) > few {
		known := make(map[T]struct{}, len(others))
		for _, object := range others {
			known[object] = struct{}{}
		}
		isOther = func(object T) bool {
			_, found := known[object]
			return found
		}
	}
	var rest []T
	var none T
	for _, object := range list {
		if object != none && !isOther(object) {
			rest = append(rest, object)
		}
	}
	return rest
}
