// SPDX-License-Identifier: Apache-2.0

package dad

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
	"github.com/millrace-lb/millrace/test/isolated"
)

// A new VIP waits while a host on the uplink uses its address. Routers with proxy ARP do not count, and
// VIPs outside of the uplink's networks are not probed.
func TestDuplicatesOfKernel(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	in := func(commands string) {
		t.Helper()
		for _, command := range strings.Split(strings.TrimSpace(commands), "\n") {
			arguments := strings.Fields(command)
			if output, err := exec.Command(arguments[0], arguments[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", command, err, output)
			}
		}
	}
	// Each host is on a port of a bridge in its own namespace, whose other end is the uplink.
	const host = "others"
	in(fmt.Sprintf(`mount --make-rprivate /
		mount -t tmpfs tmpfs /run
		ip netns add %[1]s
		sysctl -qw net.ipv6.conf.default.accept_dad=0
		ip link add eth0 type veth peer name port netns %[1]s
		ip address add 198.51.100.1/24 dev eth0
		ip address add 2001:db8:51::1/64 dev eth0
		ip link set eth0 up
		ip netns exec %[1]s sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv4.conf.all.arp_ignore=1
		ip -n %[1]s link add switch type bridge
		ip -n %[1]s link set port master switch up
		ip -n %[1]s link set switch up
		ip -n %[1]s link add router type veth peer name router-port
		ip -n %[1]s link set router-port master switch up
		ip -n %[1]s link set router address 02:00:00:00:00:fe up
		ip -n %[1]s address add 198.51.100.254/24 dev router
		ip -n %[1]s link add printer type veth peer name printer-port
		ip -n %[1]s link set printer-port master switch up
		ip -n %[1]s link set printer address 02:00:00:00:00:09 up
		ip -n %[1]s address add 198.51.100.80/24 dev printer
		ip -n %[1]s address add 2001:db8:51::80/64 dev printer
		ip -n %[1]s address add 198.51.100.81/24 dev router`, host))

	vips := []netip.Addr{
		netip.MustParseAddr("198.51.100.80"), netip.MustParseAddr("198.51.100.81"), netip.MustParseAddr("198.51.100.82"),
		netip.MustParseAddr("203.0.113.80"), netip.MustParseAddr("2001:db8:51::80"),
	}
	m := &model.Model{
		Nodes: []model.Node{{Name: "node1", Node: forwarding.Node{IPv4: netip.MustParseAddr("198.51.100.1")}}},
	}
	for _, vip := range vips {
		m.VIPs = append(m.VIPs, model.VIP{
			Address: vip, Created: time.Now(), Services: []model.VIPService{{Name: model.ServiceName{Namespace: "default", Name: "web"}}},
		})
	}
	gateways := model.Gateways{millracev1beta1.FamilyIPv4: {netip.MustParseAddr("198.51.100.254")}}
	learnRouter(t, gateways[millracev1beta1.FamilyIPv4][0])

	changed := make(chan struct{}, 1)
	d := NewDetector(func() { notify.Signal(changed) }, logr.Discard())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- d.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("returned %v, want context.Canceled", err)
		}
	}()
	await := func(want map[netip.Addr]string) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		for {
			found, err := netdev.NewFinder(nil).Networks()
			if err != nil {
				t.Fatal(err)
			}
			var networks []model.Network
			for _, network := range found {
				networks = append(networks, model.Network(network))
			}
			withheld, holders, _ := d.Evaluate(m, &model.Snapshot{OnLink: networks, Gateways: gateways}, []string{"eth0"}, nil, time.Now())
			reasons := map[netip.Addr]string{}
			for vip, decision := range withheld {
				reasons[vip] = decision.Reason
			}
			if fmt.Sprint(reasons) == fmt.Sprint(want) {
				for _, holder := range holders {
					if holder.HardwareAddr.String() != "02:00:00:00:00:09" || holder.Interface != "eth0" || !holder.Withheld {
						t.Errorf("detected host %+v, want the printer", holder)
					}
				}
				return
			}
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("pending VIPs %v, want %v; hosts %+v", reasons, want, holders)
			}
		}
	}
	await(map[netip.Addr]string{
		vips[0]: announce.ReasonChecking, vips[1]: announce.ReasonChecking, vips[2]: announce.ReasonChecking, vips[4]: announce.ReasonChecking,
	})
	await(map[netip.Addr]string{vips[0]: announce.ReasonDuplicate, vips[4]: announce.ReasonDuplicate})
	told, err := d.Scan(t.Context(), []netip.Addr{vips[0], vips[1], vips[2], vips[3], gateways[millracev1beta1.FamilyIPv4][0]})
	want := []consoleapi.Host{
		{Address: vips[0], Interface: "eth0", HardwareAddr: "02:00:00:00:00:09"},
		{Address: vips[1], Interface: "eth0", HardwareAddr: "02:00:00:00:00:fe", Known: true},
		{Address: vips[2], Interface: "eth0"},
		{Address: gateways[millracev1beta1.FamilyIPv4][0], Interface: "eth0", Known: true},
	}
	if err != nil || !slices.Equal(told.Hosts, want) {
		t.Errorf("probe result: %+v, error %v, want %+v", told, err, want)
	}
	if known, err := netdev.KnownNeighbours(gateways[millracev1beta1.FamilyIPv4]); err != nil || len(known) != 1 {
		t.Errorf("neighbor entry of the router is %v, error %v: the probe must not change it", known, err)
	}
	await(map[netip.Addr]string{vips[0]: announce.ReasonDuplicate, vips[4]: announce.ReasonDuplicate})
	in(fmt.Sprintf("ip -n %s link set printer down", host))
	await(nil)
}

// learnRouter makes the kernel resolve a router, as BGP does.
func learnRouter(t *testing.T, router netip.Addr) {
	t.Helper()
	conn, err := net.Dial("udp", netip.AddrPortFrom(router, 9).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		known, err := netdev.KnownNeighbours([]netip.Addr{router})
		if err != nil {
			t.Fatal(err)
		}
		if len(known) > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the router %s does not reply", router)
		}
	}
}
