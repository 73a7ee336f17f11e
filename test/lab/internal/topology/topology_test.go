// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func mustNew(t *testing.T, nodes, routers int) Topology {
	t.Helper()
	plan, err := New(nodes, routers)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestAddresses(t *testing.T) {
	plan := mustNew(t, 12, 2)
	for _, test := range []struct {
		host      string
		iface     int
		addresses string
	}{
		{"client", 0, "198.51.100.130/25 2001:db8:0:2::130/64"},
		{"cp", 0, "198.51.100.2/25 2001:db8:0:1::2/64"},
		{"router1", 0, "198.51.100.101/25 2001:db8:0:1::101/64"},
		{"router2", 1, "198.51.100.202/25 2001:db8:0:2::202/64"},
		{"node1", 0, "198.51.100.11/25 2001:db8:0:1::11/64"},
		{"node12", 0, "198.51.100.22/25 2001:db8:0:1::22/64"},
	} {
		host, ok := plan.Host(test.host)
		if !ok {
			t.Fatalf("no host %s", test.host)
		}
		addresses := host.Interfaces[test.iface].Addresses
		if got := addresses[0].String() + " " + addresses[1].String(); got != test.addresses {
			t.Errorf("%s: %s, want %s", test.host, got, test.addresses)
		}
	}
	node, _ := plan.Host("node12")
	if got := node.PodCIDRs[0].String() + " " + node.PodCIDRs[1].String(); got != "198.18.12.0/24 2001:db8:100:12::/64" {
		t.Errorf("node12 has pods in %s", got)
	}
}

// TestLargest checks what must hold for every plan on the largest one.
func TestLargest(t *testing.T) {
	plan := mustNew(t, MaxNodes, MaxRouters)
	seen := map[netip.Addr]string{}
	ports := map[string]bool{}
	var pods []netip.Prefix
	for _, host := range plan.Hosts {
		for _, iface := range host.Interfaces {
			networks := []netip.Prefix{FabricV4, FabricV6}
			if iface.Segment == Outside {
				networks = []netip.Prefix{OutsideV4, OutsideV6}
			}
			for i, prefix := range iface.Addresses {
				if other, twice := seen[prefix.Addr()]; twice {
					t.Errorf("%s and %s both have %s", host.Name, other, prefix.Addr())
				}
				seen[prefix.Addr()] = host.Name
				if prefix.Masked() != networks[i] {
					t.Errorf("%s: %s is not in %s", host.Name, prefix, networks[i])
				}
				if last := lastV4(networks[i]); prefix.Addr() == networks[i].Addr() || prefix.Addr() == last {
					t.Errorf("%s has the network's own address %s", host.Name, prefix)
				}
			}
			// IFNAMSIZ is 16 with the terminating zero.
			if ports[iface.Port] || len(iface.Port) > 15 {
				t.Errorf("%s: port name %q is taken or too long", host.Name, iface.Port)
			}
			ports[iface.Port] = true
		}
		pods = append(pods, host.PodCIDRs...)
	}
	for i, prefix := range pods {
		if !PodsV4.Contains(prefix.Addr()) && !PodsV6.Contains(prefix.Addr()) {
			t.Errorf("pod network %s is in neither %s nor %s", prefix, PodsV4, PodsV6)
		}
		for _, other := range pods[:i] {
			if prefix.Overlaps(other) {
				t.Errorf("pod networks %s and %s overlap", prefix, other)
			}
		}
	}
}

func lastV4(network netip.Prefix) netip.Addr {
	if !network.Addr().Is4() {
		return netip.Addr{}
	}
	address := network.Addr().As4()
	address[3] |= byte(1<<(32-network.Bits()) - 1)
	return netip.AddrFrom4(address)
}

func TestRoutes(t *testing.T) {
	plan := mustNew(t, 3, 2)
	for _, test := range []struct {
		host   string
		routes []string
	}{
		{"client", []string{
			"0.0.0.0/0 198.51.100.201 198.51.100.202",
			"::/0 2001:db8:0:2::201 2001:db8:0:2::202",
		}},
		{"router1", nil},
		{"node2", []string{
			"0.0.0.0/0 198.51.100.101 198.51.100.102",
			"::/0 2001:db8:0:1::101 2001:db8:0:1::102",
			"198.18.1.0/24 198.51.100.11",
			"2001:db8:100:1::/64 2001:db8:0:1::11",
			"198.18.3.0/24 198.51.100.13",
			"2001:db8:100:3::/64 2001:db8:0:1::13",
		}},
	} {
		host, _ := plan.Host(test.host)
		var got []string
		for _, route := range host.Routes {
			words := []string{route.Destination.String()}
			for _, gateway := range route.Gateways {
				words = append(words, gateway.String())
			}
			got = append(got, strings.Join(words, " "))
		}
		if !slices.Equal(got, test.routes) {
			t.Errorf("%s: routes %q, want %q", test.host, got, test.routes)
		}
	}
}

// The CNI of an overlay makes the routes between pods itself.
func TestOverlay(t *testing.T) {
	plan, err := NewRouted(3, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range plan.WithRole(RoleNode) {
		for _, route := range host.Routes {
			if route.Destination.Bits() != 0 {
				t.Errorf("%s has a route to %s", host.Name, route.Destination)
			}
		}
		if !slices.Contains(host.Sysctls, Sysctl{"net/ipv4/conf/all/rp_filter", "1"}) {
			t.Errorf("%s does not check sources", host.Name)
		}
	}
	if routes := plan.ControlPlane().Routes; len(routes) != 2+2*3 {
		t.Errorf("the control plane has %d routes", len(routes))
	}
}

func TestForwarding(t *testing.T) {
	plan := mustNew(t, 1, 1)
	for _, host := range plan.Hosts {
		want := "0"
		if host.Role == RoleNode || host.Role == RoleRouter {
			want = "1"
		}
		// Settings are applied in order: the last one counts.
		got := ""
		for _, sysctl := range host.Sysctls {
			if sysctl.Name == "net/ipv4/ip_forward" {
				got = sysctl.Value
			}
		}
		if got != want {
			t.Errorf("%s: ip_forward is %q, want %q", host.Name, got, want)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, size := range [][2]int{{0, 1}, {-1, 1}, {MaxNodes + 1, 1}, {1, -1}, {1, MaxRouters + 1}} {
		if _, err := New(size[0], size[1]); err == nil {
			t.Errorf("%d nodes and %d routers: want an error", size[0], size[1])
		}
	}
}

// Without routers the client is a host among the nodes, and finds VIPs of their network itself.
func TestWithoutRouters(t *testing.T) {
	plan := mustNew(t, MaxNodes, 0)
	client, _ := plan.Host("client")
	if len(client.Interfaces) != 1 || client.Interfaces[0].Segment != Fabric || len(client.Routes) > 0 {
		t.Errorf("the client has %+v", client)
	}
	seen := map[netip.Addr]string{}
	for _, host := range plan.Hosts {
		if host.Role == RoleRouter {
			t.Errorf("there is %s", host.Name)
		}
		address := host.Interfaces[0].Addresses[0]
		if seen[address.Addr()] != "" || address.Masked() != FabricV4 {
			t.Errorf("%s has %s, as %q", host.Name, address, seen[address.Addr()])
		}
		seen[address.Addr()] = host.Name
	}
	node, _ := plan.Host("node1")
	if route := node.Routes[0]; route.Destination != netip.MustParsePrefix("0.0.0.0/0") || !slices.Equal(route.Gateways, []netip.Addr{client.AddrV4()}) {
		t.Errorf("node1 leads what is elsewhere by %+v", route)
	}
}
