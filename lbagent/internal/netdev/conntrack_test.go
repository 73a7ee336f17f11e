// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/isolated"
)

// TestTranslatedConnections checks that only translated connections are returned, until they have ended.
// It needs root.
func TestTranslatedConnections(t *testing.T) {
	isolated.Thread(t)
	const established = 3
	vip, pod := net.ParseIP("203.0.113.1").To4(), net.ParseIP("198.18.1.2").To4()
	vip6, pod6 := net.ParseIP("2001:db8:cafe::1"), net.ParseIP("2001:db8:100::2")
	add := func(family netlink.InetFamily, client net.IP, port uint16, to, answersFrom net.IP, state uint8) {
		t.Helper()
		must(t, netlink.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
			FamilyType: uint8(family), TimeOut: 60, ProtoInfo: &netlink.ProtoInfoTCP{State: state},
			Forward: netlink.IPTuple{SrcIP: client, DstIP: to, SrcPort: port, DstPort: 80, Protocol: unix.IPPROTO_TCP},
			Reverse: netlink.IPTuple{SrcIP: answersFrom, DstIP: client, SrcPort: 80, DstPort: port, Protocol: unix.IPPROTO_TCP},
		}))
	}
	client, client6 := net.ParseIP("198.51.100.7").To4(), net.ParseIP("2001:db8:1::7")
	add(unix.AF_INET, client, 40000, vip, pod, established)
	add(unix.AF_INET, client, 40001, vip, pod, tcpTimeWait)
	add(unix.AF_INET, client, 40002, vip, pod, tcpClosed)
	add(unix.AF_INET, client, 40003, pod, pod, established)
	add(unix.AF_INET6, client6, 40004, vip6, pod6, established)
	add(unix.AF_INET6, client6, 40005, vip6, pod6, tcpTimeWait)

	got, err := TranslatedConnections()
	must(t, err)
	want := []TranslatedFlow{
		{netip.MustParseAddrPort("198.51.100.7:40000"), netip.MustParseAddrPort("203.0.113.1:80"), unix.IPPROTO_TCP},
		{netip.MustParseAddrPort("[2001:db8:1::7]:40004"), netip.MustParseAddrPort("[2001:db8:cafe::1]:80"), unix.IPPROTO_TCP},
	}
	slices.SortFunc(got, func(a, b TranslatedFlow) int { return int(a.Client.Port()) - int(b.Client.Port()) })
	if !slices.Equal(got, want) {
		t.Errorf("translated flows = %v, want %v", got, want)
	}
}
