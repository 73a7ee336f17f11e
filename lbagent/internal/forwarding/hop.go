// SPDX-License-Identifier: Apache-2.0

package forwarding

// Hop is a next hop on Ethernet, prepared so that the program need not ask the
// kernel for one.
type Hop struct {
	// Interface is the index of the interface to send by; never a VLAN device,
	// but the one below it.
	Interface int
	// VLAN is the 802.1Q tag control information to send with: the VLAN's number
	// in the lower 12 bits. Zero means untagged.
	VLAN uint16
	// Source and Destination are the Ethernet addresses of the frame.
	Source, Destination [6]byte
	// MTU is the longest IP packet in bytes that the way to the node takes, 1 to
	// 65,535.
	MTU int
}
