// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// AttachPass attaches an XDP program that passes all packets to a veth in the calling thread's namespace,
// replacing another. The kernel wakes the receiver of XDP_TX frames only if it has a program too
// (veth_xdp_flush in drivers/net/veth.c); NICs need none.
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

// AttachXDP attaches an XDP program to a veth in the calling thread's namespace, replacing another.
func AttachXDP(port string, program *ebpf.Program) error {
	device, err := netlink.LinkByName(port)
	if err != nil {
		return fmt.Errorf("find link %s: %w", port, err)
	}
	// Netlink, not a link object, so that the attachment lives as long as the device.
	if err := netlink.LinkSetXdpFdWithFlags(device, program.FD(), int(link.XDPDriverMode)); err != nil {
		return fmt.Errorf("attach an XDP program to %s: %w", port, err)
	}
	return nil
}
