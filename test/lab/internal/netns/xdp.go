// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// AttachPass puts an XDP program that passes everything on a veth of the calling thread's
// namespace, in place of another one. The kernel wakes the receiver of what its peer sends by
// XDP_TX only when the receiver has a program too (veth_xdp_flush in drivers/net/veth.c);
// without one such frames lie in its ring until an ordinary packet follows. A real card knows no
// such thing.
func AttachPass(port string) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:    "wire",
		Type:    ebpf.XDP,
		License: "Dual MIT/GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R0, 2), // XDP_PASS
			asm.Return(),
		},
	})
	if err != nil {
		return fmt.Errorf("load the program that passes packets: %w", err)
	}
	defer program.Close()
	return AttachXDP(port, program)
}

// AttachXDP puts an XDP program on a veth of the calling thread's namespace, in place of another
// one.
func AttachXDP(port string, program *ebpf.Program) error {
	device, err := netlink.LinkByName(port)
	if err != nil {
		return fmt.Errorf("find link %s: %w", port, err)
	}
	// By netlink, not by a link object: it shall live as long as the device.
	if err := netlink.LinkSetXdpFdWithFlags(device, program.FD(), int(link.XDPDriverMode)); err != nil {
		return fmt.Errorf("attach an XDP program to %s: %w", port, err)
	}
	return nil
}
