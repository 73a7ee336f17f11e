// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// claimsPerSecond bounds the announcements of other hosts that an interface reads.
const claimsPerSecond = 100

// ClaimFunc is called when another host announces a VIP that this node answers for on the interface.
type ClaimFunc func(name string, address netip.Addr, from net.HardwareAddr)

// claim is a host's announcement of an address: gratuitous ARP, an ARP reply or a neighbour advertisement.
type claim struct {
	address netip.Addr
	from    net.HardwareAddr
}

// Classic filters that pass announcements.
var (
	arpClaims = append(slices.Clone(forThisHost),
		bpf.LoadAbsolute{Off: 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(arp.OperationReply), SkipTrue: 4},
		// Gratuitous requests have equal addresses.
		bpf.LoadAbsolute{Off: 14, Size: 4},
		bpf.TAX{},
		bpf.LoadAbsolute{Off: 24, Size: 4},
		bpf.JumpIfX{Cond: bpf.JumpEqual, SkipFalse: 1},
		bpf.RetConstant{Val: maxFilterLength},
		bpf.RetConstant{Val: 0},
	)
	advertisements = append(slices.Clone(forThisHost),
		bpf.LoadAbsolute{Off: 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: icmpv6, SkipFalse: 3},
		bpf.LoadAbsolute{Off: ipv6HeaderSize, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 136, SkipFalse: 1},
		bpf.RetConstant{Val: maxFilterLength},
		bpf.RetConstant{Val: 0},
	)
)

// listenForClaims opens sockets that read announcements of other hosts.
func (l *link) listenForClaims(device *net.Interface) error {
	byARP, err := listen(device, unix.ETH_P_ARP, arpClaims)
	if err != nil {
		return err
	}
	byIPv6, err := listen(device, unix.ETH_P_IPV6, advertisements)
	if err != nil {
		return errors.Join(err, byARP.Close())
	}
	l.claims = []*packet.Conn{byARP, byIPv6}
	l.done.Add(2)
	go l.readClaims(byARP, readARPClaim)
	go l.readClaims(byIPv6, readAdvertisement)
	return nil
}

func (l *link) readClaims(conn *packet.Conn, parse func([]byte, net.HardwareAddr) claim) {
	defer l.done.Done()
	limit := newBucket(claimsPerSecond)
	buffer := make([]byte, maxFilterLength)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			l.fail()
			return
		}
		for now := time.Now(); !limit.take(now); now = time.Now() {
			time.Sleep(pause)
		}
		address, is := from.(*packet.Addr)
		if !is {
			continue
		}
		read := parse(buffer[:n], address.HardwareAddr)
		if isUnicast(read.from) && read.from.String() != l.own.String() && l.owns(read.address) {
			l.claimed(l.name, read.address, read.from)
		}
	}
}

// readARPClaim returns the sender of gratuitous ARP or of a reply, or the zero claim.
func readARPClaim(payload []byte, _ net.HardwareAddr) claim {
	packet := arp.Packet{}
	if packet.UnmarshalBinary(payload) != nil || packet.HardwareType != ethernetType || packet.ProtocolType != ipv4Type ||
		packet.HardwareAddrLength != 6 || packet.IPLength != 4 {
		return claim{}
	}
	if packet.Operation != arp.OperationReply && !packet.SenderIP.Equal(packet.TargetIP) {
		return claim{}
	}
	address, _ := netip.AddrFromSlice(packet.SenderIP)
	return claim{address, packet.SenderHardwareAddr}
}

// readAdvertisement returns the target of a neighbour advertisement (RFC 4861, section 7.1.2), or the zero claim.
func readAdvertisement(payload []byte, from net.HardwareAddr) claim {
	parsed, _, err := readNeighbour(payload)
	advertisement, is := parsed.(*ndp.NeighborAdvertisement)
	if err != nil || !is {
		return claim{}
	}
	if target := addressIn(advertisement.Options, ndp.Target); target != nil {
		from = target
	}
	return claim{advertisement.TargetAddress, from}
}
