// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/ethtool.h: the hash of IPv4's and IPv6's TCP and UDP packets, and the flag by which it
// takes the first two bytes behind the IP header, where the source port is.
const (
	tcpOverIPv4      = 0x01
	tcpOverIPv6      = 0x05
	udpOverIPv4      = 0x02
	udpOverIPv6      = 0x06
	rxHashSourcePort = 1 << 6
)

// rxnfc is struct ethtool_rxnfc. data is the hash's flags, or the number of rings.
type rxnfc struct {
	command, flowType uint32
	data              uint64
	_                 [176]byte
}

// spread is by what a card spreads packets over its receive queues.
type spread struct {
	queues uint64
	// hashes are the flags of the hash by flow type. One is missing that the driver does not tell.
	hashes map[uint32]uint64
}

// UnspreadTunnel tells of interfaces whose card puts all encapsulated packets of a node into one
// receive queue, and so on one CPU: it hashes UDP by addresses alone. Drivers that do not tell, and
// interfaces that are gone, are left out.
func UnspreadTunnel(interfaces []string) []string {
	var told []string
	for _, name := range interfaces {
		s, err := readSpread(name)
		if err != nil {
			continue
		}
		told = append(told, s.problems(name)...)
	}
	return told
}

func (s *spread) problems(name string) []string {
	if s.queues < 2 {
		return nil
	}
	var told []string
	for _, family := range []struct {
		udp, tcp uint32
		flow, ip string
	}{{udpOverIPv4, tcpOverIPv4, "udp4", "IPv4"}, {udpOverIPv6, tcpOverIPv6, "udp6", "IPv6"}} {
		hash, known := s.hashes[family.udp]
		if hash == 0 && s.hashes[family.tcp] == 0 {
			// A card that hashes neither has no hash that ethtool sets: queues of virtio without RSS are
			// chosen by the hypervisor.
			continue
		}
		if known && hash&rxHashSourcePort == 0 {
			told = append(told, fmt.Sprintf("%s hashes UDP over %s by addresses alone: all packets that another node encapsulates "+
				"come in by one of its %d receive queues; run \"ethtool -N %s rx-flow-hash %s sdfn\" (docs/install.md, Uplinks)",
				name, family.ip, s.queues, name, family.flow))
		}
	}
	return told
}

func readSpread(name string) (*spread, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket for ethtool: %w", err)
	}
	defer unix.Close(socket)
	rings := rxnfc{command: unix.ETHTOOL_GRXRINGS}
	if err := rings.ask(socket, name); err != nil {
		return nil, fmt.Errorf("read the receive queues of %s: %w", name, err)
	}
	s := &spread{queues: rings.data, hashes: map[uint32]uint64{}}
	for _, flowType := range []uint32{tcpOverIPv4, udpOverIPv4, tcpOverIPv6, udpOverIPv6} {
		hash := rxnfc{command: unix.ETHTOOL_GRXFH, flowType: flowType}
		// Where the driver does not tell, it is left out.
		if hash.ask(socket, name) == nil {
			s.hashes[flowType] = hash.data
		}
	}
	return s, nil
}

// ask has the kernel fill in the answer.
func (r *rxnfc) ask(socket int, name string) error {
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(r)}
	if len(name) >= unix.IFNAMSIZ {
		return unix.ENODEV
	}
	copy(request.name[:], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(r)
	if errno != 0 {
		return errno
	}
	return nil
}
