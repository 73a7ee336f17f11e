// SPDX-License-Identifier: Apache-2.0

// Package lru implements a map with LRU eviction. It is pure.
package lru

import "container/list"

// Cache is an LRU map. It is not safe for concurrent use.
type Cache[K comparable, V any] struct {
	most    int
	entries map[K]*list.Element
	order   list.List
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

// New returns a map with a capacity of most entries, at least one.
func New[K comparable, V any](most int) *Cache[K, V] {
	return &Cache[K, V]{most: max(most, 1), entries: map[K]*list.Element{}}
}

// Get returns a value and marks it as recently used.
func (m *Cache[K, V]) Get(key K) (value V, ok bool) {
	found, ok := m.entries[key]
	if !ok {
		return value, false
	}
	m.order.MoveToFront(found)
	return found.Value.(*entry[K, V]).value, true
}

// Put sets a value and marks it as recently used. It evicts the least recently used entry of a full map.
func (m *Cache[K, V]) Put(key K, value V) {
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

// Len returns the number of entries.
func (m *Cache[K, V]) Len() int { return len(m.entries) }
