// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

type anyMaps struct{ *node }

func (anyMaps) Apply(forwarding.Op) error { return nil }

type anyRouter struct{ speakerOf }

func (r anyRouter) Set(want bgp.Want) error {
	r.want = want
	return nil
}

// BenchmarkOneMore measures the pass for one additional VIP on a node with 20,000, without map writes,
// informers and BGP.
func BenchmarkOneMore(b *testing.B) {
	benchmarkPass(b, func(objects *model.Snapshot) { addService(objects, len(objects.Services)+1, true, 1, 1) })
}

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
	l.assembler.Objects = func() *model.Snapshot { return objects }
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
