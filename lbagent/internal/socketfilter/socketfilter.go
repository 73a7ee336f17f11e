// SPDX-License-Identifier: Apache-2.0

// Package socketfilter drops unwanted packets before they occupy a socket's queue, and counts drops.
package socketfilter

import (
	"fmt"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// NetworkHeader is the offset of the IP header in filters: SKF_NET_OFF of linux/filter.h. Other offsets of
// UDP and TCP sockets start at the transport header.
const NetworkHeader = 0xfff00000

// Attach replaces the socket's filter (SO_ATTACH_FILTER, socket(7)). Packets for which it returns zero are
// dropped.
func Attach(fd int, program []bpf.Instruction) error {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("assemble the filter of a socket: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, instruction := range raw {
		filter[i] = unix.SockFilter{Code: instruction.Op, Jt: instruction.Jt, Jf: instruction.Jf, K: instruction.K}
	}
	attached := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &attached); err != nil {
		return fmt.Errorf("attach a filter of %d instructions to a socket: %w", len(filter), err)
	}
	return nil
}

// IgnorePathMTU disables path MTU discovery for a UDP socket. ICMP errors are not authenticated, and the
// kernel caches their MTU per destination, so untrusted hosts could shrink the paths to other nodes.
func IgnorePathMTU(fd int, v6 bool) error {
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_INTERFACE
	if v6 {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_INTERFACE
	}
	if err := unix.SetsockoptInt(fd, level, option, value); err != nil {
		return fmt.Errorf("disable path MTU updates from ICMP errors: %w", err)
	}
	return nil
}

// Drops returns the number of packets that the socket's filter or its full queue dropped.
func Drops(fd int) uint32 {
	// SK_MEMINFO_DROPS of linux/sock_diag.h.
	const at = 8
	var numbers [at + 1]uint32
	size := uint32(unsafe.Sizeof(numbers))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&numbers)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0
	}
	return numbers[at]
}
