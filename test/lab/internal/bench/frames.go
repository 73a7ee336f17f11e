// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// XDP actions (enum xdp_action in linux/bpf.h).
const (
	xdpDrop = 1
	xdpPass = 2
	xdpTX   = 3
)

// Offsets in a frame, and lengths, in bytes.
const (
	etherType  = 12
	ipHeader   = 14
	ipProtocol = ipHeader + 9
	sourcePort = ipHeader + 20

	// frameLength is the minimum Ethernet frame without FCS.
	frameLength = 60
	// geneve is Millrace's encapsulation overhead over IPv4, vxlan that of some CNIs.
	geneve = 60
	vxlan  = 50
)

const firstPort = 1024

// udpFrame returns a datagram without source port and without checksum (permitted by RFC 768).
func udpFrame(station net.HardwareAddr, from netip.Addr, to netip.AddrPort) []byte {
	frame := make([]byte, frameLength)
	copy(frame, station)
	copy(frame[6:], net.HardwareAddr{2, 0, 0, 0, 0, 1})
	binary.BigEndian.PutUint16(frame[etherType:], unix.ETH_P_IP)
	ip := frame[ipHeader:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], frameLength-ipHeader)
	copy(ip[12:], from.AsSlice())
	copy(ip[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], internetChecksum(ip[:20]))
	udp := frame[sourcePort:]
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], frameLength-sourcePort)
	return frame
}

// internetChecksum is the RFC 1071 checksum of an even number of bytes.
func internetChecksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// withData starts a program: R6 is the frame with at least the given length, R7 its end. Shorter frames
// jump to short.
func withData(bytes int32, short string) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.Word),
		asm.LoadMem(asm.R7, asm.R1, 4, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R6),
		asm.Add.Imm(asm.R2, bytes),
		asm.JGT.Reg(asm.R2, asm.R7, short),
	}
}

func returnAction(action int32, label string) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, action).WithSymbol(label), asm.Return()}
}

// sender returns a program that sends the frame on an interface with random source ports of the flows. It
// rewrites the whole frame, because the kernel reuses buffers.
func sender(frame []byte, flows, ifindex int) (*ebpf.Program, error) {
	code := withData(frameLength, "short")
	const word = 4
	for offset := 0; offset < len(frame); offset += word {
		value := int64(int32(binary.NativeEndian.Uint32(frame[offset:])))
		code = append(code, asm.StoreImm(asm.R6, int16(offset), value, asm.Word))
	}
	code = append(code,
		asm.FnGetPrandomU32.Call(),
		asm.Mod.Imm32(asm.R0, int32(flows)),
		asm.Add.Imm(asm.R0, firstPort),
		asm.HostTo(asm.BE, asm.R0, asm.Half),
		asm.StoreMem(asm.R6, sourcePort, asm.R0, asm.Half),
		asm.Mov.Imm(asm.R1, int32(ifindex)),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return())
	return load("bench_sender", append(code, returnAction(xdpDrop, "short")...))
}

// reflector returns every frame to its sender, the minimum work of a forwarding node.
func reflector() (*ebpf.Program, error) {
	code := append(withData(ipHeader, "short"),
		asm.LoadMem(asm.R1, asm.R6, 0, asm.Word),
		asm.LoadMem(asm.R2, asm.R6, 4, asm.Half),
		asm.LoadMem(asm.R3, asm.R6, 6, asm.Word),
		asm.LoadMem(asm.R4, asm.R6, 10, asm.Half),
		asm.StoreMem(asm.R6, 0, asm.R3, asm.Word),
		asm.StoreMem(asm.R6, 4, asm.R4, asm.Half),
		asm.StoreMem(asm.R6, 6, asm.R1, asm.Word),
		asm.StoreMem(asm.R6, 10, asm.R2, asm.Half),
		asm.Mov.Imm(asm.R0, xdpTX),
		asm.Return())
	return load("bench_reflector", append(code, returnAction(xdpDrop, "short")...))
}

// sink drops and counts UDP over IPv4 of the sender's frame length, also encapsulated, and passes all other
// frames so that the node stays in the cluster.
func sink(count *ebpf.Map) (*ebpf.Program, error) {
	code := append(withData(frameLength, "pass"),
		asm.Mov.Reg(asm.R8, asm.R7),
		asm.Sub.Reg(asm.R8, asm.R6),
		asm.JEq.Imm(asm.R8, frameLength, "ours"),
		asm.JEq.Imm(asm.R8, frameLength+vxlan, "ours"),
		asm.JNE.Imm(asm.R8, frameLength+geneve, "pass"),
		asm.LoadMem(asm.R1, asm.R6, etherType, asm.Half).WithSymbol("ours"),
		asm.HostTo(asm.BE, asm.R1, asm.Half),
		asm.JNE.Imm(asm.R1, unix.ETH_P_IP, "pass"),
		asm.LoadMem(asm.R1, asm.R6, ipProtocol, asm.Byte),
		asm.JNE.Imm(asm.R1, unix.IPPROTO_UDP, "pass"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, count.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord))
	code = append(code, returnAction(xdpDrop, "drop")...)
	return load("bench_sink", append(code, returnAction(xdpPass, "pass")...))
}

func load(name string, code asm.Instructions) (*ebpf.Program, error) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.XDP, License: "Dual MIT/GPL", Instructions: code})
	if err != nil {
		return nil, fmt.Errorf("load the XDP program %s: %w", name, err)
	}
	return program, nil
}
