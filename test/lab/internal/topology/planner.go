// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
)

type planner struct {
	nodes, routers int
	// ownRoutes is true if the CNI routes to pods of other nodes.
	ownRoutes bool
}

// client is behind the routers or, without routers, on the fabric.
func (p planner) client() Host {
	if p.routers == 0 {
		return Host{
			Name:       "client",
			Role:       RoleClient,
			Interfaces: []Interface{attach("eth0", "client", Fabric, numberClientInside)},
			Sysctls:    commonSysctls(),
		}
	}
	return Host{
		Name:       "client",
		Role:       RoleClient,
		Interfaces: []Interface{attach("eth0", "client", Outside, numberClient)},
		Routes:     p.defaultRoutes(Outside),
		Sysctls:    append(commonSysctls(), multipathSysctls()...),
	}
}

// router has routes to the two segments only, so that a reply with a pod's source address is not routed by
// accident.
func (p planner) router(r int) Host {
	name := "router" + strconv.Itoa(r)
	sysctls := append(commonSysctls(), forwardingSysctls()...)
	return Host{
		Name: name,
		Role: RoleRouter,
		Interfaces: []Interface{
			attach("eth0", name, Fabric, numberRouters+r),
			attach("eth1", name+"-out", Outside, numberRoutersBeyond+r),
		},
		Sysctls: append(sysctls, multipathSysctls()...),
	}
}

func (p planner) controlPlane() Host {
	host := Host{
		Name:       "cp",
		Role:       RoleControlPlane,
		Interfaces: []Interface{attach("eth0", "cp", Fabric, numberControlPlane)},
		Routes:     p.defaultRoutes(Fabric),
		Sysctls:    commonSysctls(),
	}
	for n := 1; n <= p.nodes; n++ {
		host.Routes = append(host.Routes, podRoutes(n)...)
	}
	return host
}

func (p planner) node(n int) Host {
	name := "node" + strconv.Itoa(n)
	host := Host{
		Name:       name,
		Role:       RoleNode,
		Interfaces: []Interface{attach("eth0", name, Fabric, numberNodes+n)},
		Routes:     p.defaultRoutes(Fabric),
		Sysctls:    append(commonSysctls(), forwardingSysctls()...),
		PodCIDRs:   podCIDRs(n),
	}
	if p.ownRoutes {
		host.Sysctls = append(host.Sysctls, strictSourceSysctls()...)
	}
	for other := 1; other <= p.nodes; other++ {
		if other != n && !p.ownRoutes {
			host.Routes = append(host.Routes, podRoutes(other)...)
		}
	}
	return host
}

// defaultRoutes balances over all routers. Without routers the client is the gateway, because packets to
// cluster IPs need a route before translation.
func (p planner) defaultRoutes(segment Segment) []Route {
	if p.routers == 0 {
		client := addressesOn(Fabric, numberClientInside)
		return []Route{
			{Destination: defaultV4, Gateways: []netip.Addr{client[0].Addr()}},
			{Destination: defaultV6, Gateways: []netip.Addr{client[1].Addr()}},
		}
	}
	first := numberRouters
	if segment == Outside {
		first = numberRoutersBeyond
	}
	v4, v6 := Route{Destination: defaultV4}, Route{Destination: defaultV6}
	for r := 1; r <= p.routers; r++ {
		addresses := addressesOn(segment, first+r)
		v4.Gateways = append(v4.Gateways, addresses[0].Addr())
		v6.Gateways = append(v6.Gateways, addresses[1].Addr())
	}
	return []Route{v4, v6}
}

func podRoutes(n int) []Route {
	cidrs, gateways := podCIDRs(n), addressesOn(Fabric, numberNodes+n)
	return []Route{
		{Destination: cidrs[0], Gateways: []netip.Addr{gateways[0].Addr()}},
		{Destination: cidrs[1], Gateways: []netip.Addr{gateways[1].Addr()}},
	}
}

func podCIDRs(n int) []netip.Prefix {
	v4 := PodsV4.Addr().As4()
	v4[2] = byte(n)
	v6 := PodsV6.Addr().As16()
	binary.BigEndian.PutUint16(v6[6:], decimalLooking(n))
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4(v4), 24),
		netip.PrefixFrom(netip.AddrFrom16(v6), 64),
	}
}

func attach(name, port string, segment Segment, number int) Interface {
	return Interface{Name: name, Port: port, Segment: segment, Addresses: addressesOn(segment, number)}
}

// addressesOn returns a host's addresses. Number 11 is .11 and ::11 for readability.
func addressesOn(segment Segment, number int) []netip.Prefix {
	network4, network6 := FabricV4, FabricV6
	if segment == Outside {
		network4, network6 = OutsideV4, OutsideV6
	}
	v4 := network4.Addr().As4()
	v4[3] = byte(number)
	v6 := network6.Addr().As16()
	binary.BigEndian.PutUint16(v6[14:], decimalLooking(number))
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4(v4), network4.Bits()),
		netip.PrefixFrom(netip.AddrFrom16(v6), network6.Bits()),
	}
}

// decimalLooking returns n, 0 to 9999, as binary-coded decimal.
func decimalLooking(n int) uint16 {
	var coded uint16
	for shift := 0; n > 0; shift += 4 {
		coded |= uint16(n%10) << shift
		n /= 10
	}
	return coded
}

// commonSysctls override settings inherited from the machine and disable DAD.
func commonSysctls() []Sysctl {
	var sysctls []Sysctl
	for _, scope := range []string{"all", "default"} {
		sysctls = append(sysctls,
			Sysctl{fmt.Sprintf("net/ipv4/conf/%s/rp_filter", scope), "0"},
			Sysctl{fmt.Sprintf("net/ipv6/conf/%s/disable_ipv6", scope), "0"},
			Sysctl{fmt.Sprintf("net/ipv6/conf/%s/accept_dad", scope), "0"},
			Sysctl{fmt.Sprintf("net/ipv6/conf/%s/accept_ra", scope), "0"},
		)
	}
	return append(sysctls, Sysctl{"net/ipv4/ip_forward", "0"})
}

func forwardingSysctls() []Sysctl {
	return []Sysctl{{"net/ipv4/ip_forward", "1"}, {"net/ipv6/conf/all/forwarding", "1"}}
}

// strictSourceSysctls enable strict reverse path filtering (RFC 3704, section 2.2), as distributions do.
func strictSourceSysctls() []Sysctl {
	return []Sysctl{{"net/ipv4/conf/all/rp_filter", "1"}, {"net/ipv4/conf/default/rp_filter", "1"}}
}

// multipathSysctls select multipath routes by addresses and ports, like datacenter routers.
func multipathSysctls() []Sysctl {
	return []Sysctl{{"net/ipv4/fib_multipath_hash_policy", "1"}, {"net/ipv6/fib_multipath_hash_policy", "1"}}
}
