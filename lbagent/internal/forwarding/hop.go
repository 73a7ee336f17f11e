// SPDX-License-Identifier: Apache-2.0

package forwarding

// Hop is a resolved next hop on Ethernet, so that the BPF program needs no FIB lookup.
type Hop struct {
	// Interface is the index of the outgoing interface; for a VLAN device, its lower device.
	Interface int
	// VLAN is the 802.1Q tag control information with the VLAN id in the lower 12 bits; zero means untagged.
	VLAN                uint16
	Source, Destination [6]byte
	// MTU is the path MTU to the node in bytes, 1 to 65,535.
	MTU int
}
