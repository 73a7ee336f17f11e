// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// vips is the number of VIPs in genModel; those above four are IPv6.
const vips = 6

func genVIP(number int) netip.Addr {
	if number <= 4 {
		return vipNumber(number)
	}
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(number)})
}

// genModel draws a model of up to four Services on VIPs of both families. Each Service has its own range of
// endpoints, so that foreign endpoints are detected.
func genModel(t *rapid.T) *model.Model {
	m := modelOf()
	m.Nodes = m.Nodes[:1]
	for id := forwarding.NodeID(2); id <= 5; id++ {
		if rapid.Bool().Draw(t, "node") {
			m.Nodes = append(m.Nodes, nodeWithID(id))
		}
	}
	m.Zones = rapid.SampledFrom([][]string{nil, {"", "a"}, {"", "a", "b"}, {"", "b", "c", "d"}}).Draw(t, "zones")
	if len(m.Zones) > 0 {
		m.Self.Zone = forwarding.Zone(rapid.IntRange(0, len(m.Zones)-1).Draw(t, "own zone"))
	}
	for service := range 4 {
		for _, f := range genPorts(t, m, service) {
			six := f
			if rapid.IntRange(0, 3).Draw(t, "families differ") == 0 {
				six.Weights = maps.Clone(f.Weights)
				delete(six.Weights, rapid.SampledFrom(m.Nodes).Draw(t, "without IPv6").ID)
			}
			for _, vip := range rapid.SliceOfNDistinct(rapid.IntRange(1, vips), 0, 3, rapid.ID[int]).Draw(t, "vips") {
				f := f
				if f.Key.VIP = genVIP(vip); f.Key.VIP.Is6() {
					f = six
					f.Key.VIP = genVIP(vip)
				}
				if !slices.ContainsFunc(m.Frontends, func(other *model.Frontend) bool { return other.Key == f.Key }) {
					m.Frontends = append(m.Frontends, &f)
				}
			}
		}
	}
	for vip := 1; vip <= vips; vip++ {
		if rapid.Bool().Draw(t, "reserved") || slices.ContainsFunc(m.Frontends, func(f *model.Frontend) bool { return f.Key.VIP == genVIP(vip) }) {
			m.VIPs = append(m.VIPs, model.VIP{Address: genVIP(vip)})
		}
	}
	slices.SortFunc(m.Frontends, func(a, b *model.Frontend) int { return a.Key.Compare(b.Key) })
	return m
}

func genPorts(t *rapid.T, m *model.Model, service int) []model.Frontend {
	ports := []model.Frontend{genServicePort(t, m, service)}
	for i := range rapid.IntRange(0, 2).Draw(t, "further ports") {
		f := ports[0]
		if rapid.Bool().Draw(t, "other pods") {
			f = genServicePort(t, m, service)
		}
		f.PortName, f.Key.Port = fmt.Sprintf("further%d", i), rapid.SampledFrom([]uint16{80, 443, 8080}).Draw(t, "port")
		ports = append(ports, f)
	}
	return ports
}

func genServicePort(t *rapid.T, m *model.Model, service int) model.Frontend {
	numbers := rapid.SliceOfNDistinct(rapid.IntRange(100*service, 100*service+5), 0, 5, rapid.ID[int]).Draw(t, "endpoints")
	slices.Sort(numbers)
	draining := rapid.IntRange(0, len(numbers)).Draw(t, "draining")
	f := frontend(1, fmt.Sprintf("service%d", service), numbers[draining:]...)
	f.Draining = endpoints(numbers[:draining]...)
	f.Local = rapid.Bool().Draw(t, "local")
	f.Shared = f.Local && rapid.Bool().Draw(t, "shared")
	f.Key.Port = rapid.SampledFrom([]uint16{80, 443}).Draw(t, "port")
	for _, node := range m.Nodes[1:] {
		if weight := rapid.Uint32Range(0, 3).Draw(t, "weight"); weight > 0 {
			f.Weights[node.ID] = weight
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "many pods") == 0 {
		times := rapid.SampledFrom([]uint32{20, 60}).Draw(t, "times")
		for node := range f.Weights {
			f.Weights[node] *= times
		}
	}
	if len(m.Zones) > 0 && !f.Local && rapid.Bool().Draw(t, "zonal") {
		for zone := range m.Zones {
			f.Zones[zone] = f.Weights
			node := rapid.SampledFrom(m.Nodes).Draw(t, "hinted node").ID
			if weight := f.Weights[node]; weight > 0 && rapid.Bool().Draw(t, "hinted") {
				f.Zones[zone] = map[forwarding.NodeID]uint32{node: weight}
			}
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "restricted") == 0 {
		f.Restricted, f.Sources = true, genSources(t)
	}
	f.OnlyEstablished = len(f.Weights) == 0 && (draining > 0 || rapid.Bool().Draw(t, "living elsewhere"))
	return f
}

func genSources(t *rapid.T) []netip.Prefix {
	half, whole := netip.MustParsePrefix("198.51.100.0/25"), netip.MustParsePrefix("203.0.113.0/24")
	return rapid.SampledFrom([][]netip.Prefix{nil, {half}, {half, whole}}).Draw(t, "sources")
}

func genLimits(t *rapid.T) forwarding.Limits {
	return forwarding.Limits{
		Frontends:      rapid.IntRange(1, 10).Draw(t, "max frontends"),
		NodeTables:     rapid.IntRange(1, 8).Draw(t, "max tables"),
		EndpointTables: rapid.IntRange(1, 8).Draw(t, "max endpoint tables"),
		Endpoints:      rapid.IntRange(1, 25).Draw(t, "max endpoints"),
		VIPs:           rapid.IntRange(1, 5).Draw(t, "max VIPs"),
		SourceRanges:   rapid.IntRange(0, 8).Draw(t, "max source ranges"),
	}
}

// genAlike draws a model with some Services from other and the rest, including nodes, from before. All
// frontends of a Service port are from the same model, as they have the same endpoints.
func genAlike(t *rapid.T, before, other *model.Model) *model.Model {
	m := *before
	m.VIPs, m.Frontends = nil, nil
	for service := range 4 {
		from := before
		if rapid.IntRange(0, 3).Draw(t, "changes") == 0 {
			from = other
		}
		for _, f := range from.Frontends {
			taken := slices.ContainsFunc(m.Frontends, func(of *model.Frontend) bool { return of.Key == f.Key })
			if f.Service.Name != fmt.Sprintf("service%d", service) || taken {
				continue
			}
			if from == other {
				moved := onNodesOf(before, *f)
				f = &moved
			}
			m.Frontends = append(m.Frontends, f)
		}
	}
	slices.SortFunc(m.Frontends, func(a, b *model.Frontend) int { return a.Key.Compare(b.Key) })
	for vip := 1; vip <= vips; vip++ {
		if len(m.FrontendsOf(genVIP(vip))) > 0 || rapid.Bool().Draw(t, "reserved") {
			m.VIPs = append(m.VIPs, model.VIP{Address: genVIP(vip)})
		}
	}
	return &m
}

// genNode makes a node fail, recover, join or leave. A down node has no endpoints.
func genNode(t *rapid.T, m *model.Model) {
	id := rapid.SampledFrom([]forwarding.NodeID{0, 0, 2, 3, 4, 5}).Draw(t, "another node")
	if id == 0 {
		return
	}
	m.Nodes = slices.Clone(m.Nodes)
	at := slices.IndexFunc(m.Nodes, func(node model.Node) bool { return node.ID == id })
	switch {
	case at < 0:
		m.Nodes = append(m.Nodes, nodeWithID(id))
	case rapid.Bool().Draw(t, "leaves"):
		m.Nodes = slices.Delete(m.Nodes, at, at+1)
	default:
		m.Nodes[at].Down = !m.Nodes[at].Down
	}
	slices.SortFunc(m.Nodes, func(a, b model.Node) int { return int(a.ID) - int(b.ID) })
	if slices.ContainsFunc(m.Nodes, func(node model.Node) bool { return node.ID == id && !node.Down }) {
		return
	}
	m.Frontends = slices.Clone(m.Frontends)
	for i, f := range m.Frontends {
		without := *f
		without.Weights = withoutNode(f.Weights, id)
		for zone, weights := range f.Zones {
			without.Zones[zone] = withoutNode(weights, id)
		}
		m.Frontends[i] = &without
	}
}

func withoutNode(weights map[forwarding.NodeID]uint32, id forwarding.NodeID) map[forwarding.NodeID]uint32 {
	if weights = maps.Clone(weights); weights != nil {
		delete(weights, id)
	}
	return weights
}

func onNodesOf(m *model.Model, f model.Frontend) model.Frontend {
	f.Zones = [forwarding.Zones]map[forwarding.NodeID]uint32{}
	f.Weights = maps.Clone(f.Weights)
	maps.DeleteFunc(f.Weights, func(id forwarding.NodeID, _ uint32) bool {
		return !slices.ContainsFunc(m.Nodes, func(node model.Node) bool { return node.ID == id })
	})
	return f
}
