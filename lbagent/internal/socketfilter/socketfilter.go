// SPDX-License-Identifier: Apache-2.0

// Package socketfilter makes sockets drop what nobody waits for before it takes room in their
// queues, and counts what they drop.
package socketfilter

import (
	"fmt"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// NetworkHeader is the offset from which a filter reads the IP header: SKF_NET_OFF of
// linux/filter.h. Without it the filter of a UDP or TCP socket reads that protocol's header.
const NetworkHeader = 0xfff00000

// Attach makes a socket drop the packets for which a program returns zero (SO_ATTACH_FILTER,
// socket(7)). It replaces the program before.
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

// IgnorePathMTU has the kernel learn no MTU of a path by ICMP errors about a UDP socket's packets.
// Nobody proves those, and the kernel keeps what they say for all packets to that address:
// untrusted hosts could make the ways to other nodes narrow.
func IgnorePathMTU(fd int, v6 bool) error {
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_INTERFACE
	if v6 {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_INTERFACE
	}
	if err := unix.SetsockoptInt(fd, level, option, value); err != nil {
		return fmt.Errorf("have a socket ignore what ICMP errors say of the path's MTU: %w", err)
	}
	return nil
}

// Drops is how many packets a socket has dropped: by its filter, or for want of room in its queue.
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
