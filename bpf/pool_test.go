// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"testing"

	"go4.org/netipx"

	"github.com/millrace-lb/millrace/bpf"
)

// pool returns a prefix of a pool without a VIP, two unassigned addresses in it and the first one beyond it.
func (f family) pool() (prefix netip.Prefix, first, last, behind netip.Addr) {
	if f.vip.Is4() {
		prefix, behind = netip.MustParsePrefix("203.0.113.128/26"), netip.MustParseAddr("203.0.113.192")
		return prefix, prefix.Addr(), behind.Prev(), behind
	}
	prefix, behind = netip.MustParsePrefix("2001:db8:cafe:0:8000::/65"), netip.MustParseAddr("2001:db8:cafe:1::")
	return prefix, prefix.Addr(), behind.Prev(), behind
}

// aggregate returns an announced prefix, its last, unassigned address, and a host's address beyond it.
func (f family) aggregate() (prefix netip.Prefix, last, behind netip.Addr) {
	if f.vip.Is4() {
		prefix = netip.MustParsePrefix("203.0.113.32/28")
	} else {
		prefix = netip.MustParsePrefix("2001:db8:cafe:0:2000::/67")
	}
	last = netipx.PrefixLastIP(prefix)
	return prefix, last, last.Next()
}

func (w *world) putPool(t testing.TB, f family) {
	t.Helper()
	pool, _, _, _ := f.pool()
	aggregate, _, _ := f.aggregate()
	for set, prefix := range map[bpf.DatapathReservedId]netip.Prefix{
		bpf.DatapathReservedIdSOURCE_SET_POOLS:      pool,
		bpf.DatapathReservedIdSOURCE_SET_AGGREGATES: aggregate,
	} {
		first, bits := prefix.Addr(), uint32(32+prefix.Bits())
		w.setFilterOf(t, prefix)
		if f.vip.Is4() {
			key := bpf.DatapathSourceRangeKey4{Prefixlen: bits, Set: uint32(set), Address: ipv4(first)}
			put(t, w.SourceRanges4, key, uint32(1))
			continue
		}
		key := bpf.DatapathSourceRangeKey6{Prefixlen: bits, Set: uint32(set), Address: address(first)}
		put(t, w.SourceRanges6, key, uint32(1))
	}
}

// unassigned are packets to addresses of a pool or aggregate without a VIP.
func unassigned(f family) []fixture {
	_, first, last, behind := f.pool()
	drop := func(name string, in []byte) fixture {
		return fixture{name: name, in: in, verdict: xdpDrop, counts: dropped(bpf.DatapathDropReasonDROP_POOL_UNASSIGNED)}
	}
	pass := func(name string, in []byte) fixture { return fixture{name: name, in: in, verdict: xdpPass} }
	syn := f.tcp(portCluster, "S")
	to := func(a netip.Addr) packet {
		return syn.with(func(p *packet) { p.to = netip.AddrPortFrom(a, portCluster) })
	}
	echo, _ := f.echo("ping")
	echo.to = netip.AddrPortFrom(first, 0)
	aggregate, lastOfAggregate, behindAggregate := f.aggregate()
	dropAggregate := func(name string, in []byte) fixture {
		return fixture{name: name, in: in, verdict: xdpDrop, counts: dropped(bpf.DatapathDropReasonDROP_AGGREGATE_UNASSIGNED)}
	}
	other := to(first).with(func(p *packet) { p.destination = otherMAC })
	return []fixture{
		drop("TCP to the first address", to(first).frame()),
		drop("TCP to the last address", to(last).frame()),
		drop("ping", echo.frame()),
		drop("UDP", f.udp(portCluster).with(func(p *packet) { p.to = netip.AddrPortFrom(last, 9) }).frame()),
		drop("in a VLAN", tagged(to(first).frame(), 0x81000007)),
		pass("address after the pool", to(behind).frame()),
		pass("ping to the address after the pool", echo.with(func(p *packet) { p.to = netip.AddrPortFrom(behind, 0) }).frame()),
		pass("frame for another station", other.frame()),
		dropAggregate("TCP to the first address of the aggregate", to(aggregate.Addr()).frame()),
		dropAggregate("TCP to the last address of the aggregate", to(lastOfAggregate).frame()),
		dropAggregate("ping to the aggregate", echo.with(func(p *packet) { p.to = netip.AddrPortFrom(lastOfAggregate, 0) }).frame()),
		dropAggregate("in a VLAN to the aggregate", tagged(to(lastOfAggregate).frame(), 0x81000007)),
		pass("address after the aggregate", to(behindAggregate).frame()),
		pass("frame for another station to the aggregate", to(lastOfAggregate).with(func(p *packet) { p.destination = otherMAC }).frame()),
	}
}

// Aggregates are looked up only with the node's flag, pools always.
func TestAggregateFlag(t *testing.T) {
	w := newWorld(t)
	for _, f := range families {
		_, pool, _, _ := f.pool()
		_, aggregate, _ := f.aggregate()
		for name, test := range map[string]struct {
			flag    bool
			to      netip.Addr
			verdict verdict
			counts  tally
		}{
			"aggregate with the flag":    {true, aggregate, xdpDrop, dropped(bpf.DatapathDropReasonDROP_AGGREGATE_UNASSIGNED)},
			"aggregate without the flag": {false, aggregate, xdpPass, nil},
			"pool with the flag":         {true, pool, xdpDrop, dropped(bpf.DatapathDropReasonDROP_POOL_UNASSIGNED)},
			"pool without the flag":      {false, pool, xdpDrop, dropped(bpf.DatapathDropReasonDROP_POOL_UNASSIGNED)},
		} {
			to := func(p *packet) { p.to = netip.AddrPortFrom(test.to, portCluster) }
			syn := f.tcp(portCluster, "S").with(to).frame()
			echo, _ := f.echo("ping")
			for path, in := range map[string][]byte{
				"TCP": syn, "in a VLAN": tagged(syn, vlanTag), "ping": echo.with(to).frame(),
			} {
				t.Run(f.name+"/"+name+"/"+path, func(t *testing.T) {
					if !test.flag {
						w.changeSelf(t, func(self *bpf.DatapathSelf) {
							self.Flags &^= uint32(bpf.DatapathSelfFlagSELF_AGGREGATES)
						})
					}
					w.check(t, fixture{in: in, verdict: test.verdict, counts: test.counts})
				})
			}
		}
	}
}
