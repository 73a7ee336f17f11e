// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/test/rig"
)

// check compares the frame from a program with its input. Both have the client of some flow at the stream's
// offsets.
type check func(sent, got []byte) error

func anything(_, _ []byte) error { return nil }

func unchanged(sent, got []byte) error {
	if !bytes.Equal(sent, got) {
		return fmt.Errorf("it was changed to %x", got)
	}
	return nil
}

// longer is for programs whose output is only checked for its length.
func longer(f family, by int) check {
	return func(_, got []byte) error {
		if len(got) != f.length+by {
			return fmt.Errorf("it has %d bytes, want %d", len(got), f.length+by)
		}
		return nil
	}
}

// withClient copies the client's address and port from another frame, both without encapsulation.
func (f family) withClient(frame, from []byte) []byte {
	at := f.clientFields(ethernetLength)
	return f.copyFields(frame, from, at, at)
}

func (f family) copyFields(frame, from []byte, at, fromAt fields) []byte {
	out := slices.Clone(frame)
	copy(out[at.address:at.address+2], from[fromAt.address:])
	copy(out[at.port:at.port+2], from[fromAt.port:])
	return out
}

// Lengths of encapsulation headers in bytes.
const (
	udpLength    = 8
	geneveLength = 8
	optionHeader = 4
)

// encapsulated checks all outer headers and that the inner packet is unchanged. to is zero for packets
// forwarded by their row.
func (f family) encapsulated(to forwarding.NodeID) check {
	return func(sent, got []byte) error {
		if len(got) != f.length+f.overhead {
			return fmt.Errorf("it has %d bytes, want %d", len(got), f.length+f.overhead)
		}
		inner := append(slices.Clone(sent[:ethernetLength]), got[ethernetLength+f.overhead:]...)
		if want := f.withClient(sent, inner); !bytes.Equal(inner, want) {
			return fmt.Errorf("the packet inside is %x, want %x", inner, want)
		}
		ip := int(f.ipHeader())
		path := binary.BigEndian.Uint64(got[ethernetLength+ip+udpLength+geneveLength+optionHeader:])
		node := forwarding.NodeID(path >> 40 & forwarding.MaxShortNodeID)
		if path>>52 != uint64(selfID) || node < f.firstNode || node >= f.firstNode+perNodes {
			return fmt.Errorf("the path is %x: not from this node to one of the row's", path)
		}
		if to != 0 {
			node = to
		}
		return f.checkOuter(got, node)
	}
}

func (f family) tagged(rest check) check {
	return func(sent, got []byte) error {
		if err := rest(sent, got); err != nil {
			return err
		}
		return rig.CheckTag(tunnelKeys(ownKey).Accepted[0], got)
	}
}

func (f family) checkOuter(got []byte, node forwarding.NodeID) error {
	from, to := self.IPv4, nodes()[node].IPv4
	if !f.client.Is4() {
		from, to = self.IPv6, nodes()[node].IPv6
	}
	length := len(got) - ethernetLength
	want := slices.Concat(nextHopMAC, uplinkMAC)
	header := got[ethernetLength:]
	if f.client.Is4() {
		want = append(want, 0x08, 0, 0x45, 0, byte(length>>8), byte(length), 0, 0, 0x40, 0, 64, 17)
		want = append(want, header[10:12]...)
		if sum := add(0, header[:20]); sum != 0xffff {
			return fmt.Errorf("the checksum of the outer header is wrong: %x", header[:20])
		}
	} else {
		label := header[1:4]
		want = append(want, 0x86, 0xdd, 0x60, label[0]&0xf, label[1], label[2])
		want = append(want, byte((length-40)>>8), byte(length-40), 17, 64)
	}
	want = slices.Concat(want, from.AsSlice(), to.AsSlice())
	udp := got[len(want):]
	length -= int(f.ipHeader())
	port := binary.BigEndian.Uint16(udp)
	if port < 49152 {
		return fmt.Errorf("the outer source port is %d", port)
	}
	want = append(want, udp[0], udp[1], 6081>>8, 6081&0xff, byte(length>>8), byte(length), 0, 0)
	want = append(want, 6, 0x40, got[12], got[13], 'M', 'L', 'R', 0, 0xff, 0x4d, 0x82, 2)
	if !bytes.HasPrefix(got, want) {
		return fmt.Errorf("the outer headers are %x, want %x", got[:len(want)], want)
	}
	return nil
}

// delivered checks that only the destination changed, to the pod, with correct checksums. behind is the length
// of the encapsulation in the input.
func (f family) delivered(behind int) check {
	return func(sent, got []byte) error {
		packet := append(slices.Clone(sent[:ethernetLength]), sent[ethernetLength+behind:]...)
		if len(got) != len(packet) {
			return fmt.Errorf("it has %d bytes, want %d", len(got), len(packet))
		}
		address := ethernetLength + int(f.ipHeader()) - len(f.pod.AsSlice())
		port := ethernetLength + int(f.ipHeader()) + 2
		to := netip.AddrPortFrom(f.pod, podPort)
		return f.checkRewritten(f.withClient(packet, got), got, address, port, to)
	}
}

// replied checks that only the source changed, to the VIP, with correct checksums.
func (f family) replied(sent, got []byte) error {
	at := f.replyFields()
	address := ethernetLength + int(f.ipHeader()) - 2*len(f.pod.AsSlice())
	port := ethernetLength + int(f.ipHeader())
	to := netip.AddrPortFrom(f.vip, portHere)
	return f.checkRewritten(f.copyFields(sent, got, at, at), got, address, port, to)
}

// checkRewritten checks that got is sent with another address and port at the offsets. The client was written
// without updating checksums, so that they are as wrong as before.
func (f family) checkRewritten(sent, got []byte, address, port int, to netip.AddrPort) error {
	want := slices.Clone(sent)
	copy(want[address:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(want[port:], to.Port())
	l3, l4 := ethernetLength, ethernetLength+int(f.ipHeader())
	check := l4 + 16
	if f.client.Is4() {
		if add(0, sent[l3:l4]) != add(0, got[l3:l4]) {
			return fmt.Errorf("the checksum of the IP header went wrong: %x became %x", sent[l3:l4], got[l3:l4])
		}
		copy(want[l3+10:l3+12], got[l3+10:])
	}
	addresses := l4 - 2*len(f.pod.AsSlice())
	if add(0, sent[addresses:]) != add(0, got[addresses:]) {
		return fmt.Errorf("the checksum of TCP went wrong: %x became %x", sent[l3:], got[l3:])
	}
	copy(want[check:check+2], got[check:])
	if !bytes.Equal(got, want) {
		return fmt.Errorf("it is %x, want %x", got, want)
	}
	return nil
}

func add(sum uint32, words []byte) uint16 {
	for i := 0; i+1 < len(words); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(words[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}
