// SPDX-License-Identifier: Apache-2.0

package lbagent

import "testing"

// BenchmarkPassAtRest is what an event costs that changes nothing for this
// node: 200 Services of 20 endpoints.
func BenchmarkPassAtRest(b *testing.B) {
	objects := cluster()
	for i := range 200 {
		addService(objects, i+1, i%2 == 0, 10, 10)
	}
	n := newNode(b)
	l := newLoop(n, objects)
	l.limits.Endpoints = 10000
	for range 2 {
		if _, err := l.pass(start); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := l.pass(start); err != nil {
			b.Fatal(err)
		}
	}
}
