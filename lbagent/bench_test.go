// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"math/rand/v2"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

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

// anyMaps are maps that take every write, which costs nothing.
type anyMaps struct{ *node }

func (anyMaps) Apply(forwarding.Op) error { return nil }

// anyRouter takes every route.
type anyRouter struct{ speakerOf }

func (r anyRouter) Set(want bgp.Want) error {
	r.want = want
	return nil
}

// BenchmarkOneMore is the pass in which a node with 20,000 VIPs learns of one more: without the
// writes to the maps, the informers and BGP.
func BenchmarkOneMore(b *testing.B) {
	const many = 20_000
	objects := cluster()
	for i := range many {
		addService(objects, i+1, i%20 != 0, 1, 1)
	}
	n := newNode(b)
	l := newLoop(n, objects)
	l.dataplane, l.speaker = anyMaps{n}, anyRouter{speakerOf{n}}
	l.limits = forwarding.Limits{
		Frontends: 2 * many, NodeTables: 2 * many, EndpointTables: 2 * many, Endpoints: 2 * many, VIPs: 2 * many,
	}
	l.objects = func() *model.Snapshot { return objects }
	for range 2 {
		if _, err := l.pass(start); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		more := *objects
		addService(&more, len(more.Services)+1, true, 1, 1)
		// Stores list objects in any order.
		shuffle(more.Services)
		shuffle(more.EndpointSlices)
		shuffle(more.VIPs)
		objects = &more
		if _, err := l.pass(start); err != nil {
			b.Fatal(err)
		}
	}
}

func shuffle[T any](objects []T) {
	rand.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
}
