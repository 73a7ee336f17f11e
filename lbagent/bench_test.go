// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"testing"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
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
	l.maps.Limits.Endpoints = 10000
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
	benchmarkPass(b, func(objects *model.Snapshot) { addService(objects, len(objects.Services)+1, true, 1, 1) })
}

// BenchmarkAllAgain is a pass in which all 20,000 VIPs are read and planned again, since another
// node has moved to another zone.
func BenchmarkAllAgain(b *testing.B) {
	zones := []string{"a", "b"}
	benchmarkPass(b, func(objects *model.Snapshot) {
		moved := objects.LBNodes[1].DeepCopy()
		moved.Spec.Zone = zones[0]
		zones[0], zones[1] = zones[1], zones[0]
		objects.LBNodes = []*millracev1beta1.LBNode{objects.LBNodes[0], moved}
	})
}

// benchmarkPass is a pass of a node with 20,000 VIPs after a change of the objects.
func benchmarkPass(b *testing.B, change func(*model.Snapshot)) {
	const many = 20_000
	objects := cluster()
	for i := range many {
		addService(objects, i+1, i%20 == 0, 1, 1)
	}
	n := newNode(b)
	l := newLoop(n, objects)
	l.maps.Plane, l.routes.Speaker = anyMaps{n}, anyRouter{speakerOf{n}}
	l.maps.Limits = forwarding.Limits{
		Frontends: 2 * many, NodeTables: 2 * many, EndpointTables: 2 * many, Endpoints: 2 * many, VIPs: 2 * many,
	}
	l.inputs.Objects = func() *model.Snapshot { return objects }
	for range 2 {
		if _, err := l.pass(start); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		next := *objects
		change(&next)
		objects = &next
		if _, err := l.pass(start); err != nil {
			b.Fatal(err)
		}
	}
}
