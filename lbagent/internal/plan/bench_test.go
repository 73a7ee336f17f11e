// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"net/netip"
	"strconv"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// largeModel has 100 nodes and 1,000 Services with 60 endpoints each, 3 of
// them on this node.
func largeModel() *model.Model {
	return modelOfSize(100, 1000, func(service int) model.Frontend {
		f := frontend(1, "service"+strconv.Itoa(service), 3*service, 3*service+1, 3*service+2)
		for i := range 19 {
			f.Weights[forwarding.NodeID(2+(7*service+5*i)%99)] = 3
		}
		return f
	})
}

// hugeModel has 1,000 nodes and 10,000 Services with 10 endpoints each, none of them here.
func hugeModel() *model.Model {
	return modelOfSize(1000, 10_000, func(service int) model.Frontend {
		f := frontend(1, "service"+strconv.Itoa(service))
		for i := range 10 {
			f.Weights[forwarding.NodeID(2+(7*service+101*i)%999)] = 1
		}
		return f
	})
}

// modelOfSize gives each Service a VIP of its own.
func modelOfSize(nodes, services int, of func(service int) model.Frontend) *model.Model {
	m := modelOf()
	m.Nodes = nil
	for id := range nodes {
		m.Nodes = append(m.Nodes, nodeWithID(forwarding.NodeID(1+id)))
	}
	for service := range services {
		f := of(service)
		f.Key.VIP = netip.AddrFrom4([4]byte{203, 0, byte(113 + service/250), byte(service % 250)})
		m.VIPs = append(m.VIPs, model.VIP{Address: f.Key.VIP})
		m.Frontends = append(m.Frontends, &f)
	}
	return m
}

// BenchmarkNodeDown is the plan in which one node of 1,000 has stopped to answer.
func BenchmarkNodeDown(b *testing.B) {
	limits := forwarding.Limits{Frontends: 20_000, NodeTables: 20_000, EndpointTables: 20_000, Endpoints: 10_000, VIPs: 20_000}
	before, down := hugeModel(), hugeModel()
	down.Nodes[499].Down = true
	for i := range down.Frontends {
		delete(down.Frontends[i].Weights, 500)
	}
	p := NewPlanner(forwarding.NewState())
	have, _ := p.Plan(forwarding.NewState(), before, limits)
	for b.Loop() {
		b.StopTimer()
		p.Plan(have, before, limits)
		b.StartTimer()
		want, _ := p.Plan(have, down, limits)
		forwarding.Diff(have, want)
	}
}

// BenchmarkReplan is the plan in which a Service of 10,000 has one pod more, where half are of policy
// Local and not all of these have node tables.
func BenchmarkReplan(b *testing.B) {
	limits := forwarding.Limits{Frontends: 20_000, NodeTables: 1_250, EndpointTables: 20_000, Endpoints: 10_000, VIPs: 20_000}
	models := [2]*model.Model{hugeModel(), hugeModel()}
	for _, m := range models {
		for i, f := range m.Frontends {
			f.MinRows, f.Local = 512, i%2 == 1
		}
	}
	for i, f := range models[1].Frontends {
		if i != 5000 {
			models[1].Frontends[i] = models[0].Frontends[i]
		} else {
			f.Weights[501]++
		}
	}
	changed := []netip.Addr{models[0].Frontends[5000].Key.VIP}
	p := NewPlanner(forwarding.NewState())
	p.Plan(forwarding.NewState(), models[0], limits)
	// The first one after a whole plan has the time that others have not.
	p.Replan(Held{State: p.last.want}, models[0], &model.Changes{Since: models[0]}, limits)
	next := 0
	for b.Loop() {
		before := models[next]
		next = 1 - next
		want, _, problems := p.Replan(Held{State: p.last.want}, models[next], &model.Changes{Since: before, VIPs: changed}, limits)
		if len(want.Frontends) != len(models[0].Frontends) || len(problems) == 0 {
			b.Fatalf("%d frontends are planned, problems %v", len(want.Frontends), problems)
		}
	}
}

func BenchmarkPlan(b *testing.B) {
	limits := forwarding.Limits{Frontends: 2000, NodeTables: 2000, EndpointTables: 2000, Endpoints: 10000, VIPs: 2000, SourceRanges: 2000}
	before, after := largeModel(), largeModel()
	after.Frontends[500].Weights = maps.Clone(after.Frontends[500].Weights)
	after.Frontends[500].Weights[2]++
	drained := largeModel()
	drained.Nodes = drained.Nodes[:99]
	for i := range drained.Frontends {
		delete(drained.Frontends[i].Weights, 100)
	}
	b.Run("1,000 services from nothing", func(b *testing.B) {
		for b.Loop() {
			empty := forwarding.NewState()
			NewPlanner(empty).Plan(empty, before, limits)
		}
	})
	p := NewPlanner(forwarding.NewState())
	have, _ := p.Plan(forwarding.NewState(), before, limits)
	for _, c := range []struct {
		name string
		next *model.Model
	}{{"nothing changed", before}, {"one weight changed", after}, {"one node of 100 gone", drained}} {
		b.Run("1,000 services, "+c.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				p.Plan(have, before, limits)
				b.StartTimer()
				want, _ := p.Plan(have, c.next, limits)
				forwarding.Diff(have, want)
			}
		})
	}
}
