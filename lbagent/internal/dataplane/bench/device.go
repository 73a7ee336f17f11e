// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

// uplinkName is the interface that packets seem to come in by.
const uplinkName = "millrace-bench"

var (
	uplinkMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 0x11}
	routerMAC  = net.HardwareAddr{2, 0, 0, 0, 0, 0x01}
	nextHopMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0x22}
)

// device is a TAP interface, which exists as long as its file is open. TAP runs XDP
// in its driver and, other than veth, sends what XDP_TX returns to anybody.
type device struct {
	file *os.File
	net.Interface
}

func newDevice() (*device, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w; is the module tun loaded?", err)
	}
	d := &device{file: os.NewFile(uintptr(fd), "/dev/net/tun")}
	request, err := unix.NewIfreq(uplinkName)
	if err != nil {
		return nil, errors.Join(err, d.file.Close())
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, errors.Join(fmt.Errorf("create interface %s: %w", uplinkName, err), d.file.Close())
	}
	if err := d.configure(); err != nil {
		return nil, errors.Join(err, d.file.Close())
	}
	return d, nil
}

// configure makes the kernel know the way to every node, for the case that the program
// asks it.
func (d *device) configure() error {
	commands := []string{
		"link set " + uplinkName + " address " + uplinkMAC.String() + " mtu 9000 up",
		// No address: this node's own must have a next hop, too, when its neighbour is played.
		"route add 198.51.100.0/24 dev " + uplinkName,
		"route add 2001:db8:0:1::/64 dev " + uplinkName,
	}
	addresses := nodeAddresses(program.Node{IPv4: self.IPv4, IPv6: self.IPv6})
	for _, node := range nodes() {
		addresses = append(addresses, nodeAddresses(node)...)
	}
	for _, address := range addresses {
		commands = append(commands, fmt.Sprintf("neighbor add %s lladdr %s dev %s nud permanent",
			address, nextHopMAC, uplinkName))
	}
	ip := exec.Command("ip", "-batch", "-")
	ip.Stdin = strings.NewReader(strings.Join(commands, "\n"))
	if out, err := ip.CombinedOutput(); err != nil {
		return fmt.Errorf("configure interface %s: %w: %s", uplinkName, err, out)
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		path := "/proc/sys/net/" + family + "/conf/" + uplinkName + "/forwarding"
		if err := os.WriteFile(path, []byte("1"), 0); err != nil {
			return fmt.Errorf("let interface %s forward: %w", uplinkName, err)
		}
	}
	found, err := net.InterfaceByName(uplinkName)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", uplinkName, err)
	}
	d.Interface = *found
	return nil
}
