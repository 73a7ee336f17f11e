// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// mtu fits all test packets after encapsulation.
const mtu = 9000

// tap is a TAP interface, which exists while its file is open. Unlike veth's, its driver sends XDP_TX frames
// without a program at the other end.
type tap struct {
	file *os.File
	net.Interface
}

func newTAP(name string, mac net.HardwareAddr) (*tap, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w; is the module tun loaded?", err)
	}
	t := &tap{file: os.NewFile(uintptr(fd), "/dev/net/tun")}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, errors.Join(err, t.file.Close())
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, errors.Join(fmt.Errorf("create interface %s: %w", name, err), t.file.Close())
	}
	ip := exec.Command("ip", "link", "set", name, "address", mac.String(), "mtu", fmt.Sprint(mtu), "up")
	if out, err := ip.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("configure interface %s: %w: %s", name, err, out), t.file.Close())
	}
	found, err := net.InterfaceByName(name)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find interface %s: %w", name, err), t.file.Close())
	}
	t.Interface = *found
	return t, nil
}
