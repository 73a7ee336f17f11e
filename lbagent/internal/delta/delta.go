// SPDX-License-Identifier: Apache-2.0

// Package delta compares lists of immutable objects by pointer. It is pure.
package delta

import (
	"reflect"
	"slices"
)

// maxLinear is the maximum length of lists that are compared pairwise.
const maxLinear = 8

// Between returns the objects only in after (came) and only in before (went). A list contains an object at
// most once, and the zero T is no object. Identical lists cost nothing.
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

// IsSame reports whether two lists share memory. Lists are immutable, so these are equal.
func IsSame[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// IsSameMap reports whether two maps share memory.
func IsSameMap[K comparable, V any](a, b map[K]V) bool {
	return reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer()
}

func without[T comparable](list, others []T) []T {
	if len(list) == 0 {
		return nil
	}
	isOther := func(object T) bool { return slices.Contains(others, object) }
	if len(others) > maxLinear {
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
