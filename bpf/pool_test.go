// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"net/netip"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

// pool is a prefix of a pool without a VIP, and in it two addresses that are unassigned and the
// first one behind it.
func (f family) pool() (prefix netip.Prefix, first, last, behind netip.Addr) {
	if f.vip.Is4() {
		prefix, behind = netip.MustParsePrefix("203.0.113.128/26"), netip.MustParseAddr("203.0.113.192")
		return prefix, prefix.Addr(), behind.Prev(), behind
	}
	prefix, behind = netip.MustParsePrefix("2001:db8:cafe:0:8000::/65"), netip.MustParseAddr("2001:db8:cafe:1::")
	return prefix, prefix.Addr(), behind.Prev(), behind
}

// putPool writes the pool's prefix among the sets of prefixes.
func (w *world) putPool(t testing.TB, f family) {
	t.Helper()
	prefix, first, _, _ := f.pool()
	w.setFilter(t, first)
	bits := uint32(32 + prefix.Bits())
	if f.vip.Is4() {
		put(t, w.SourceRanges4, bpf.DatapathSourceRangeKey4{
			Prefixlen: bits, Set: uint32(bpf.DatapathShapeSOURCE_SET_POOLS), Address: ipv4(first),
		}, uint32(1))
		return
	}
	put(t, w.SourceRanges6, bpf.DatapathSourceRangeKey6{
		Prefixlen: bits, Set: uint32(bpf.DatapathShapeSOURCE_SET_POOLS), Address: address(first),
	}, uint32(1))
}

// unassigned are packets to addresses of a pool that no VIP has.
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
	other := to(first).with(func(p *packet) { p.destination = otherMAC })
	return []fixture{
		drop("TCP to the first address", to(first).frame()),
		drop("TCP to the last address", to(last).frame()),
		drop("ping", echo.frame()),
		drop("UDP", f.udp(portCluster).with(func(p *packet) { p.to = netip.AddrPortFrom(last, 9) }).frame()),
		drop("in a VLAN", tagged(to(first).frame(), 0x81000007)),
		pass("address behind the pool", to(behind).frame()),
		pass("ping to the address behind the pool", echo.with(func(p *packet) { p.to = netip.AddrPortFrom(behind, 0) }).frame()),
		pass("frame for another station", other.frame()),
	}
}
