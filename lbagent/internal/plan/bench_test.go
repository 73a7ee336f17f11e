// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"strconv"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// hugeModel has 1,000 nodes and 10,000 Services with 10 endpoints each, all on other nodes.
func hugeModel() *model.Model {
	return modelOfSize(1000, 10_000, func(service int) model.Frontend {
		f := frontend(1, "service"+strconv.Itoa(service))
		for i := range 10 {
			f.Weights[forwarding.NodeID(2+(7*service+101*i)%999)] = 1
		}
		return f
	})
}

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

// BenchmarkReplan adds a pod to one of 10,000 Services, half of them Local and some of these without a node
// table.
func BenchmarkReplan(b *testing.B) {
	limits := forwarding.Limits{Frontends: 20_000, NodeTables: 1_250, EndpointTables: 20_000, Endpoints: 10_000, VIPs: 20_000}
	models := [2]*model.Model{hugeModel(), hugeModel()}
	for _, m := range models {
		for i, f := range m.Frontends {
			f.Local = i%2 == 1
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
	// The first Replan after a full plan builds the index.
	p.Replan(MapContent{State: p.last.want}, models[0], &model.Changes{Since: models[0]}, limits)
	next := 0
	for b.Loop() {
		before := models[next]
		next = 1 - next
		want, _, problems := p.Replan(MapContent{State: p.last.want}, models[next], &model.Changes{Since: before, VIPs: changed}, limits)
		if len(want.Frontends) != len(models[0].Frontends) || len(problems) == 0 {
			b.Fatalf("%d frontends were planned, problems %v", len(want.Frontends), problems)
		}
	}
}
