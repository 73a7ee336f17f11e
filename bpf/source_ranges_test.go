// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/millrace-lb/millrace/bpf"
)

const rangeSet = 7

func (w *world) changeFrontends(t *testing.T, f family, port uint16, change func(*bpf.DatapathFrontend)) {
	t.Helper()
	for _, protocol := range []layers.IPProtocol{layers.IPProtocolTCP, layers.IPProtocolUDP} {
		before := w.frontend(t, f, port, protocol)
		frontend := before
		change(&frontend)
		w.setFrontend(t, f, port, protocol, frontend)
		t.Cleanup(func() { w.setFrontend(t, f, port, protocol, before) })
	}
}

func (w *world) admit(t *testing.T, set uint32, prefixes ...string) {
	t.Helper()
	for _, text := range prefixes {
		prefix := netip.MustParsePrefix(text)
		bits := 32 + uint32(prefix.Bits())
		m, key := w.SourceRanges6, any(bpf.DatapathSourceRangeKey6{Prefixlen: bits, Set: set, Address: address(prefix.Addr())})
		if prefix.Addr().Is4() {
			m, key = w.SourceRanges4, bpf.DatapathSourceRangeKey4{Prefixlen: bits, Set: set, Address: ipv4(prefix.Addr())}
		}
		put(t, m, key, uint32(1))
		t.Cleanup(func() {
			if err := m.Delete(key); err != nil {
				t.Error(err)
			}
		})
	}
}

// Prefixes with and without the client, per family.
var around = map[string]struct{ wide, exact, beside, elsewhere string }{
	"IPv4": {"198.51.100.0/24", "198.51.100.200/32", "198.51.100.201/32", "198.51.0.0/22"},
	"IPv6": {"2001:db8:0:2::/64", "2001:db8:0:2::200/128", "2001:db8:0:2::201/128", "2001:db8:0:3::/64"},
}

func TestSourceRanges(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		other := v6
		if f.vip.Is6() {
			other = v4
		}
		p, foreign := around[f.name], around[other.name]
		for name, test := range map[string]struct {
			set, of  uint32
			prefixes []string
			admitted bool
		}{
			"no set":                                {set: 0, of: rangeSet, admitted: true},
			"prefix that contains the client":       {set: rangeSet, of: rangeSet, prefixes: []string{p.wide}, admitted: true},
			"address of the client":                 {set: rangeSet, of: rangeSet, prefixes: []string{p.elsewhere, p.exact}, admitted: true},
			"wide and narrow":                       {set: rangeSet, of: rangeSet, prefixes: []string{p.wide, p.beside}, admitted: true},
			"neighboring address":                   {set: rangeSet, of: rangeSet, prefixes: []string{p.beside}},
			"unrelated prefix":                      {set: rangeSet, of: rangeSet, prefixes: []string{p.elsewhere}},
			"empty set":                             {set: rangeSet, of: rangeSet},
			"set with prefixes of the other family": {set: rangeSet, of: rangeSet, prefixes: []string{foreign.wide}},
			"prefix of another set":                 {set: rangeSet, of: rangeSet + 1, prefixes: []string{p.wide}},
			"set id that differs in one bit":        {set: rangeSet | 1<<31, of: rangeSet, prefixes: []string{p.wide}},
		} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				for _, port := range []uint16{portNode2, portCluster, portLocal} {
					w.changeFrontends(t, f, port, func(frontend *bpf.DatapathFrontend) { frontend.Ranges = test.set })
				}
				w.admit(t, test.of, test.prefixes...)
				checkAdmission(t, w, f, test.admitted)
			})
		}
	}
}

// checkAdmission sends to a remote, a local and a policy Local frontend.
func checkAdmission(t *testing.T, w *world, f family, admitted bool) {
	t.Helper()
	away, here, local := f.tcp(portNode2, "S"), f.udp(portCluster), f.tcp(portLocal, "S")
	fixtures := []fixture{
		{
			name: "stage 1", in: away.frame(), verdict: xdpTX,
			out: away.tunnelled(v4.node2, 2).sent(uplinkMAC, node2MAC), counts: f.received(away),
		},
		{
			name: "stage 2", in: here.frame(), verdict: xdpPass, out: delivered(here, f.pods[0]),
			counts: join(f.received(here), f.opened(portCluster)),
		},
		{
			name: "Local", in: local.frame(), verdict: xdpPass, out: delivered(local, f.pods[0]),
			counts: join(f.received(local), f.opened(portLocal)),
		},
	}
	for i, p := range []packet{away, here, local} {
		if !admitted {
			fixtures[i].verdict, fixtures[i].counts = xdpDrop, join(f.received(p), dropped(bpf.DatapathDropReasonDROP_SOURCE_RANGE))
		}
		t.Run(fixtures[i].name, func(t *testing.T) { w.check(t, fixtures[i]) })
	}
}

// The ingress node checked the source. Other nodes do not check again, because their set may be older.
func TestSourceRangesOfPacketsFromNodes(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			w.changeFrontends(t, f, portCluster, func(frontend *bpf.DatapathFrontend) { frontend.Ranges = rangeSet })
			p := f.tcp(portCluster, "S")
			w.check(t, fixture{
				in: p.arrived(f, 0).frame(), verdict: xdpPass, out: delivered(p, f.pods[0]), counts: f.opened(portCluster),
			})
		})
	}
}
