// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
	"github.com/millrace-lb/millrace/test/isolated"
)

// TestUplinksOfKernel adds and removes interfaces besides the one that leads to the router, and checks
// that the programs are attached where possible.
func TestUplinksOfKernel(t *testing.T) {
	if !isolated.Test(t) {
		return
	}
	directory := t.TempDir()
	if err := unix.Mount("bpf", directory, "bpf", 0, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(directory, 0); err != nil {
			t.Error(err)
		}
	})
	limits := forwarding.Limits{Frontends: 4, NodeTables: 2, EndpointTables: 2, Endpoints: 4, VIPs: 2, SourceRanges: 2}
	plane, err := dataplane.Open(dataplane.Config{
		PinRoot: filepath.Join(directory, "millrace"), Limits: limits,
		Connections: 64, HalfOpen: 64, Datagrams: 64, Affinities: 64, Overrides: 64,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Close(); err != nil {
			t.Error(err)
		}
	})
	u := New(netdev.NewFinder(nil).Find, plane, logr.Discard())
	m := &model.Model{
		Self: forwarding.Self{IPv4: netip.MustParseAddr("198.51.100.1")},
		Peers: []model.Peer{
			{Name: "router", Address: netip.MustParseAddr("198.51.100.254")},
			{Name: "remote", Address: netip.MustParseAddr("203.0.113.254")},
		},
	}
	now := time.Now()
	for _, step := range []struct {
		name, commands string
		after          time.Duration
		// interfaces are names with modes, unattached the peers without an announced route.
		interfaces, unattached []string
	}{
		{"one uplink", `link add eth0 type veth peer name router
			link set eth0 up
			link set router up
			address add 198.51.100.1/24 dev eth0
			route add default via 198.51.100.254`, 0, []string{"eth0 Native"}, nil},
		{"tun device with a default route of lower preference", `tuntap add tun0 mode tun
			link set tun0 up
			route add default dev tun0 metric 1000`, 0, []string{"eth0 Native", "tun0 None"}, nil},
		{"tun device keeps the route", "", netdev.HoldOff, []string{"eth0 Native", "tun0 None"}, nil},
		{"tun device with the preferred route", `route add 0.0.0.0/1 dev tun0
			route add 128.0.0.0/1 dev tun0`, 0, []string{"eth0 Native", "tun0 None"}, []string{"remote"}},
		{"tun device removed", "link delete tun0", 0, []string{"eth0 Native"}, nil},
		{"tun device with a route to a peer", `tuntap add tun1 mode tun
			link set tun1 up
			route replace default dev tun1`, 0, []string{"eth0 Native", "tun1 None"}, nil},
		{"tun device keeps the route to the peer", "", netdev.HoldOff, []string{"eth0 Native", "tun1 None"}, []string{"remote"}},
		{"Ethernet interface with the default route", `link add eth1 type veth peer name other
			link set eth1 up
			link set other up
			route replace default dev eth1`, 0, []string{"eth0 Native", "eth1 Native", "tun1 None"}, nil},
	} {
		t.Run(step.name, func(t *testing.T) {
			now = now.Add(step.after)
			for _, command := range strings.Split(step.commands, "\n") {
				if fields := strings.Fields(command); len(fields) > 0 {
					if out, err := exec.Command("ip", fields...).CombinedOutput(); err != nil {
						t.Fatalf("ip %s: %v: %s", command, err, out)
					}
				}
			}
			c, err := u.Update(m, now)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, i := range c.Interfaces {
				got = append(got, fmt.Sprintf("%s %s", i.Name, i.XDPMode))
			}
			if !slices.Equal(got, step.interfaces) {
				t.Errorf("interfaces %v, want %v", got, step.interfaces)
			}
			for i := range m.Peers {
				reason, unattached := c.Unattached[m.Peers[i].Name]
				if unattached != slices.Contains(step.unattached, m.Peers[i].Name) {
					t.Errorf("%s is unattached = %t (%s), want unattached peers %v", m.Peers[i].Name, unattached, reason, step.unattached)
				}
			}
		})
	}
}
