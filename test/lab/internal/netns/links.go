// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

// MTU is the MTU of all links in bytes.
const MTU = 1500

// AddBridge creates a bridge without STP and multicast snooping in the calling thread's namespace.
func AddBridge(name string) error {
	snooping := false
	bridge := &netlink.Bridge{
		LinkAttrs:         netlink.LinkAttrs{Name: name, MTU: MTU},
		MulticastSnooping: &snooping,
	}
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add bridge %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("set bridge %s up: %w", name, err)
	}
	return nil
}

// AddPort connects a host's interface to its segment's bridge in the calling thread's namespace. xdp
// prepares the port for an XDP program on the host's interface.
func AddPort(host string, iface topology.Interface, xdp bool) error {
	peer, err := os.Open(Path(host))
	if err != nil {
		return fmt.Errorf("connect %s to %s: %w", host, iface.Segment, err)
	}
	defer peer.Close()
	bridge, err := netlink.LinkByName(string(iface.Segment))
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", iface.Segment, err)
	}
	port := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: iface.Port, MTU: MTU, MasterIndex: bridge.Attrs().Index},
		PeerName:         iface.Name,
		PeerNamespace:    netlink.NsFd(int(peer.Fd())),
		PeerHardwareAddr: hardwareAddress(host, iface.Name),
	}
	if err := netlink.LinkAdd(port); err != nil {
		return fmt.Errorf("add link %s: %w", iface.Port, err)
	}
	if xdp {
		if err := prepareForXDP(iface.Port); err != nil {
			return err
		}
		if err := AttachPass(iface.Port); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(port); err != nil {
		return fmt.Errorf("set link %s up: %w", iface.Port, err)
	}
	return nil
}

// hardwareAddress returns a constant address per interface, like a NIC, because neighbours cache it across
// reboots.
func hardwareAddress(host, name string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(host + "/" + name))
	const locallyAdministered, group = 0x02, 0x01
	sum[0] = sum[0]&^group | locallyAdministered
	return sum[:6]
}

// prepareForXDP configures a veth whose peer runs XDP. For XDP_TX and XDP_REDIRECT this side must receive
// by NAPI, which GRO enables. Send offloads are disabled, because packets for XDP need complete checksums
// and link-sized frames.
func prepareForXDP(port string) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("set offloads of %s: %w", port, err)
	}
	defer tool.Close()
	states, err := tool.FeaturesWithState(port)
	if err != nil {
		return fmt.Errorf("read offloads of %s: %w", port, err)
	}
	features := map[string]bool{"rx-gro": true}
	for name, state := range states {
		if state.Active && !state.NeverChanged && isSendOffload(name) {
			features[name] = false
		}
	}
	if err := tool.Change(port, features); err != nil {
		return fmt.Errorf("set offloads of %s: %w", port, err)
	}
	return nil
}

// isSendOffload reports whether a feature defers checksums, segmentation or VLAN tags of sent packets to
// the device.
func isSendOffload(feature string) bool {
	return strings.HasPrefix(feature, "tx-checksum-") || strings.HasSuffix(feature, "-segmentation") ||
		strings.HasPrefix(feature, "tx-vlan-") || feature == "tx-gso-list"
}

// AddVeth creates a veth pair without addresses in the calling thread's namespace.
func AddVeth(near, far string) error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: near, MTU: MTU}, PeerName: far}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("add link %s: %w", near, err)
	}
	return errors.Join(SetPort(near, true), SetPort(far, true))
}

// DeletePort deletes a port with the host's interface, if it exists.
func DeletePort(port string) error {
	link, err := netlink.LinkByName(port)
	if notFound := (netlink.LinkNotFoundError{}); errors.As(err, &notFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find link %s: %w", port, err)
	}
	if err := netlink.LinkDel(link); err != nil {
		return fmt.Errorf("delete link %s: %w", port, err)
	}
	return nil
}

// DeletePorts deletes all ports of the calling thread's namespace.
func DeletePorts() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, link := range links {
		if link.Type() == "veth" {
			if err := DeletePort(link.Attrs().Name); err != nil {
				return err
			}
		}
	}
	return nil
}

// SetPort sets a port up or down.
func SetPort(port string, up bool) error {
	link, err := netlink.LinkByName(port)
	if err != nil {
		return fmt.Errorf("find link %s: %w", port, err)
	}
	set := netlink.LinkSetDown
	if up {
		set = netlink.LinkSetUp
	}
	if err := set(link); err != nil {
		return fmt.Errorf("set link %s: %w", port, err)
	}
	return nil
}

// Sysctls writes settings of the calling thread's namespace.
func Sysctls(settings []topology.Sysctl) error {
	for _, setting := range settings {
		if err := os.WriteFile(filepath.Join("/proc/sys", setting.Name), []byte(setting.Value), 0); err != nil {
			return fmt.Errorf("set sysctl %s to %s: %w", setting.Name, setting.Value, err)
		}
	}
	return nil
}

// Configure sets the settings, addresses and routes of the host in the calling thread's namespace.
func Configure(host topology.Host) error {
	if err := Sysctls(host.Sysctls); err != nil {
		return err
	}
	for _, iface := range host.Interfaces {
		if err := configureInterface(iface); err != nil {
			return err
		}
	}
	for _, route := range host.Routes {
		if err := addRoute(route); err != nil {
			return err
		}
	}
	return nil
}

func configureInterface(iface topology.Interface) error {
	link, err := netlink.LinkByName(iface.Name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", iface.Name, err)
	}
	for _, prefix := range iface.Addresses {
		address := &netlink.Addr{IPNet: ipNet(prefix)}
		if prefix.Addr().Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("add address %s to %s: %w", prefix, iface.Name, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set interface %s up: %w", iface.Name, err)
	}
	return nil
}

func addRoute(route topology.Route) error {
	request := &netlink.Route{Dst: ipNet(route.Destination)}
	if len(route.Gateways) == 1 {
		request.Gw = route.Gateways[0].AsSlice()
	} else {
		for _, gateway := range route.Gateways {
			request.MultiPath = append(request.MultiPath, &netlink.NexthopInfo{Gw: gateway.AsSlice()})
		}
	}
	if err := netlink.RouteAdd(request); err != nil {
		return fmt.Errorf("add route to %s via %v: %w", route.Destination, route.Gateways, err)
	}
	return nil
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{
		IP:   prefix.Addr().AsSlice(),
		Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
	}
}
