// SPDX-License-Identifier: Apache-2.0

// Package recent is a table of so many entries, of which the longest unused goes when it is full.
// It is pure.
package recent

import "container/list"

// Map is such a table. It is for one goroutine at a time.
type Map[K comparable, V any] struct {
	most    int
	entries map[K]*list.Element
	// order begins with the entry that was used last.
	order list.List
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

// New makes a table of so many entries, at least one.
func New[K comparable, V any](most int) *Map[K, V] {
	return &Map[K, V]{most: max(most, 1), entries: map[K]*list.Element{}}
}

// Get uses an entry.
func (m *Map[K, V]) Get(key K) (value V, ok bool) {
	found, ok := m.entries[key]
	if !ok {
		return value, false
	}
	m.order.MoveToFront(found)
	return found.Value.(*entry[K, V]).value, true
}

// Put makes or changes an entry, and uses it. Where there is no room, the longest unused goes.
func (m *Map[K, V]) Put(key K, value V) {
	if found, ok := m.entries[key]; ok {
		found.Value.(*entry[K, V]).value = value
		m.order.MoveToFront(found)
		return
	}
	if len(m.entries) >= m.most {
		last := m.order.Back()
		delete(m.entries, m.order.Remove(last).(*entry[K, V]).key)
	}
	m.entries[key] = m.order.PushFront(&entry[K, V]{key, value})
}

// Len is how many entries there are.
func (m *Map[K, V]) Len() int { return len(m.entries) }
