// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Constants of linux/ethtool.h: flow types of TCP and UDP, and the hash flag for the first two bytes of
// the transport header, which are the source port.
const (
	tcpOverIPv4      = 0x01
	tcpOverIPv6      = 0x05
	udpOverIPv4      = 0x02
	udpOverIPv6      = 0x06
	rxHashSourcePort = 1 << 6
)

// rxnfc is struct ethtool_rxnfc. data are hash flags, or a number of rings.
type rxnfc struct {
	command, flowType uint32
	data              uint64
	_                 [176]byte
}

type hashFields struct {
	queues uint64
	// hashes are hash flags by flow type. Flow types that the driver does not report are missing.
	hashes map[uint32]uint64
}

// SingleQueueTunnels returns messages about interfaces that hash UDP by addresses only, so that one receive
// queue and CPU gets all encapsulated packets of a node. Unknown interfaces are skipped.
func SingleQueueTunnels(interfaces []string) []string {
	var problems []string
	for _, name := range interfaces {
		s, err := readHashFields(name)
		if err != nil {
			continue
		}
		problems = append(problems, s.problems(name)...)
	}
	return problems
}

func (s *hashFields) problems(name string) []string {
	if s.queues < 2 {
		return nil
	}
	var problems []string
	for _, family := range []struct {
		udp, tcp uint32
		flow, ip string
	}{{udpOverIPv4, tcpOverIPv4, "udp4", "IPv4"}, {udpOverIPv6, tcpOverIPv6, "udp6", "IPv6"}} {
		hash, known := s.hashes[family.udp]
		if hash == 0 && s.hashes[family.tcp] == 0 {
			// A card without any hash, such as virtio without RSS, cannot be configured by ethtool: the
			// hypervisor selects the queues.
			continue
		}
		if known && hash&rxHashSourcePort == 0 {
			problems = append(problems, fmt.Sprintf("%s hashes UDP over %s by addresses alone: all packets that another node encapsulates "+
				"come in by one of its %d receive queues; run \"ethtool -N %s rx-flow-hash %s sdfn\" (docs/install.md, Uplinks)",
				name, family.ip, s.queues, name, family.flow))
		}
	}
	return problems
}

func readHashFields(name string) (*hashFields, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a socket for ethtool: %w", err)
	}
	defer unix.Close(socket)
	rings := rxnfc{command: unix.ETHTOOL_GRXRINGS}
	if err := rings.query(socket, name); err != nil {
		return nil, fmt.Errorf("read the receive queues of %s: %w", name, err)
	}
	s := &hashFields{queues: rings.data, hashes: map[uint32]uint64{}}
	for _, flowType := range []uint32{tcpOverIPv4, udpOverIPv4, tcpOverIPv6, udpOverIPv6} {
		hash := rxnfc{command: unix.ETHTOOL_GRXFH, flowType: flowType}
		// Flow types that the driver does not report are skipped.
		if hash.query(socket, name) == nil {
			s.hashes[flowType] = hash.data
		}
	}
	return s, nil
}

func (r *rxnfc) query(socket int, name string) error {
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
