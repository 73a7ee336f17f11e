// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

type hosts struct {
	t    *testing.T
	conn *packet.Conn
}

// newHosts returns hosts that read frames to one of them.
func newHosts(t *testing.T, reads net.HardwareAddr) *hosts {
	t.Helper()
	device, err := net.InterfaceByName("eth2")
	if err != nil {
		t.Fatal(err)
	}
	// The sockets also receive sent frames.
	toThem, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(reads), SkipTrue: 2},
		bpf.LoadAbsolute{Off: 4, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(binary.BigEndian.Uint16(reads[4:])), SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: 2048},
	})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := packet.Listen(device, packet.Raw, unix.ETH_P_ALL, &packet.Config{Filter: toThem})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &hosts{t, conn}
}

func hostMAC(n int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 1, byte(n >> 8), byte(n)} }

func (h *hosts) send(from, to net.HardwareAddr, protocol uint16, payload []byte) {
	h.t.Helper()
	h.sendFrame(frameOf(from, to, protocol, payload))
}

func frameOf(from, to net.HardwareAddr, protocol uint16, payload []byte) []byte {
	return append(append(slices.Concat(to, from), byte(protocol>>8), byte(protocol)), payload...)
}

func (h *hosts) sendFrame(frame []byte) {
	h.t.Helper()
	if _, err := h.conn.WriteTo(frame, &packet.Addr{HardwareAddr: net.HardwareAddr(frame[:6])}); err != nil {
		h.t.Error(err)
	}
}

func (h *hosts) ask(from net.HardwareAddr, target netip.Addr) {
	h.t.Helper()
	if target.Is4() {
		h.send(from, broadcast, unix.ETH_P_ARP, request(h.t, func(p *arp.Packet) {
			p.SenderHardwareAddr, p.TargetIP = from, target.AsSlice()
		}))
		return
	}
	itself := []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: from}}
	h.send(from, multicastOf(groupOf(target)), unix.ETH_P_IPV6, solicitationFor(h.t, target, client6, itself, func([]byte) {}))
}

func (h *hosts) answered(host net.HardwareAddr) error {
	if err := h.conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	frame := make([]byte, 2048)
	for {
		n, _, err := h.conn.ReadFrom(frame)
		if err != nil {
			return err
		}
		if n > 12 && string(frame[:6]) == string(host) {
			return nil
		}
	}
}

// awaitAnswer repeats requests, because the link may lose frames.
func (h *hosts) awaitAnswer(host net.HardwareAddr, target netip.Addr) {
	h.t.Helper()
	await(h.t, func() bool {
		h.ask(host, target)
		return h.answered(host) == nil
	})
}

// flood sends at least 40,000 requests at up to rate per second and returns after 40,000; end stops it.
func (h *hosts) flood(rate float64, one func(n int)) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	began := time.Now()
	go func() {
		defer close(ended)
		for sent := 0; sent < 40000 || ctx.Err() == nil; {
			for due := int(time.Since(began).Seconds() * rate); sent < due && (sent < 40000 || ctx.Err() == nil); sent++ {
				one(sent)
			}
			time.Sleep(time.Millisecond)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// untrustedHosts returns requests for the VIPs from 100,000 spoofed hosts.
func (h *hosts) untrustedHosts() (frames [][]byte) {
	h.t.Helper()
	const all = 100000
	for n := range all {
		from := net.HardwareAddr{2, 1, 0, byte(n >> 16), byte(n >> 8), byte(n)}
		if n%2 == 0 {
			address := netip.AddrFrom4([4]byte{198, 18, byte(n >> 9), byte(n >> 1)})
			frames = append(frames, frameOf(from, broadcast, unix.ETH_P_ARP, request(h.t, func(p *arp.Packet) {
				p.SenderHardwareAddr, p.SenderIP, p.TargetIP = from, address.AsSlice(), vip4.AsSlice()
			})))
			continue
		}
		address := netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 2: 0xd, 3: 0xb8, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)})
		itself := []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: from}}
		frames = append(frames, frameOf(from, multicastOf(groupOf(vip6)), unix.ETH_P_IPV6,
			solicitationFor(h.t, vip6, address, itself, func([]byte) {})))
	}
	return frames
}
