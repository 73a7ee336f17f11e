// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"testing"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

type wire struct {
	socket  int
	arrived int
}

func newVeth(t *testing.T, near, far string) (Uplink, *net.Interface) {
	t.Helper()
	run(t, "ip", "link", "add", near, "type", "veth", "peer", "name", far)
	t.Cleanup(func() { run(t, "ip", "link", "delete", near) })
	for _, end := range []string{near, far} {
		// Without IPv6 addresses the kernel sends no packets of its own.
		run(t, "ip", "link", "set", end, "addrgenmode", "none")
		run(t, "ip", "link", "set", end, "up")
	}
	var ends [2]*net.Interface
	for i, name := range []string{near, far} {
		end, err := net.InterfaceByName(name)
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = end
	}
	return Uplink{Name: near, Index: ends[0].Index}, ends[1]
}

func openWire(t *testing.T, end *net.Interface) *wire {
	t.Helper()
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(protocol))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(socket) })
	if err := unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: end.Index}); err != nil {
		t.Fatal(err)
	}
	return &wire{socket: socket}
}

func (w *wire) send(t *testing.T, frame []byte) {
	t.Helper()
	if _, err := unix.Write(w.socket, frame); err != nil {
		t.Fatal(err)
	}
}

func (w *wire) receive() {
	var buffer [256]byte
	for {
		n, err := unix.Read(w.socket, buffer[:])
		if err != nil {
			return
		}
		if n >= len(hopAddress) && bytes.Equal(buffer[:len(hopAddress)], hopAddress[:]) {
			w.arrived++
		}
	}
}

// prepareEnd attaches a pass program or enables GRO at the end.
func prepareEnd(t *testing.T, end *net.Interface, program, gro bool) {
	t.Helper()
	if program {
		l, err := link.AttachXDP(link.XDPOptions{Program: passProgram(t), Interface: end.Index, Flags: link.XDPDriverMode})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	if gro {
		run(t, "ethtool", "-K", end.Name, "gro", "on")
	}
}

// vethRing is the ring size of a veth without a reader (VETH_RING_SIZE).
const vethRing = 256

// Frames sent by XDP on a veth arrive if the other end runs a program, and are otherwise lost, and counted
// once the kernel drops them.
func TestVethTransmit(t *testing.T) {
	const frames = 400
	for name, test := range map[string]struct {
		transmit, program, gro bool
		arrived, lost, handed  int
	}{
		"off":                    {program: true, arrived: frames, handed: frames},
		"program on the peer":    {transmit: true, program: true, arrived: frames},
		"GRO without a wakeup":   {transmit: true, gro: true, lost: frames - vethRing},
		"no program on the peer": {transmit: true, lost: frames},
	} {
		t.Run(name, func(t *testing.T) {
			uplink, far := newVeth(t, "near", "far")
			prepareEnd(t, far, test.program, test.gro)
			config := smallConfig(mountBPF(t))
			config.VethTransmit = test.transmit
			// The kernel needs this to route to the other node.
			if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
			run(t, "ip", "address", "add", "198.51.100.11/25", "dev", "near")
			run(t, "ip", "neighbour", "add", "198.51.100.12", "lladdr", net.HardwareAddr(hopAddress[:]).String(), "dev", "near")
			w := newTransmitFixtureOn(t, config, uplink, uplink)
			wire := openWire(t, far)
			var got Counters
			for i := range frames {
				wire.send(t, w.frame)
				// One at a time, so that no frame is lost before the program.
				await(t, "the program has run", func() bool {
					got = counters(t, &node{dataplane: w.Dataplane})
					var packets uint64
					for _, counter := range got.Frontends {
						packets += counter.Packets
					}
					return packets > uint64(i)
				})
				wire.receive()
			}
			await(t, "all frames arrived or were counted", func() bool {
				wire.receive()
				got = counters(t, &node{dataplane: w.Dataplane})
				return wire.arrived >= test.arrived && got.Drops["xdp_tx"] >= uint64(test.lost)
			})
			if wire.arrived != test.arrived || got.Drops["xdp_tx"] != uint64(test.lost) ||
				got.Events["passed_to_kernel"] != uint64(test.handed) {
				t.Errorf("%d frames received, %d lost, %d passed to the kernel; want %d, %d, %d", wire.arrived,
					got.Drops["xdp_tx"], got.Events["passed_to_kernel"], test.arrived, test.lost, test.handed)
			}
			if want := (UplinkTransmitDrops{Interface: "near", Transmit: uint64(test.lost)}); len(got.TransmitDrops) != 1 || got.TransmitDrops[0] != want {
				t.Errorf("TransmitDrops = %+v, want %+v", got.TransmitDrops, want)
			}
		})
	}
}

// Frames redirected to a veth arrive if the other end has a program or GRO. Otherwise its driver lacks
// ndo_xdp_xmit: kernels from 6.3 report that, and the frames take the kernel's path; on others they are lost
// and counted.
func TestVethRedirect(t *testing.T) {
	// Their buffers, a page each, fit into the socket's.
	const frames = 32
	for name, test := range map[string]struct {
		program, gro, asked bool
		lost, handed        int
	}{
		"program on the peer":              {program: true, asked: true},
		"GRO":                              {gro: true, asked: true},
		"nothing":                          {asked: true, handed: frames},
		"no program, TakesRedirects unset": {lost: frames},
	} {
		t.Run(name, func(t *testing.T) {
			uplink, far := newVeth(t, "near", "far")
			prepareEnd(t, far, test.program, test.gro)
			config := smallConfig(mountBPF(t))
			config.VethTransmit = true
			if test.asked {
				config.TakesRedirects = netdev.TakesRedirects
				if _, err := netlink.GenlFamilyGet("netdev"); errors.Is(err, unix.ENOENT) && test.handed > 0 {
					t.Skip("this kernel, older than 6.3, does not report XDP features")
				}
			}
			// The kernel needs this to route to the other node.
			if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
			run(t, "ip", "address", "add", "198.51.100.11/25", "dev", "near")
			run(t, "ip", "neighbour", "add", "198.51.100.12", "lladdr", net.HardwareAddr(hopAddress[:]).String(), "dev", "near")
			w := newTransmitFixtureOn(t, config, newTap(t, "first"), uplink)
			wire := openWire(t, far)
			if transmit, redirect := w.send(t, frames); transmit != 0 || redirect != uint64(test.lost) {
				t.Errorf("%d XDP_TX drops and %d redirect drops, want 0 and %d", transmit, redirect, test.lost)
			}
			await(t, "the other frames arrived", func() bool {
				wire.receive()
				return wire.arrived >= frames-test.lost
			})
			if handed := counters(t, &node{dataplane: w.Dataplane}).Events["passed_to_kernel"]; wire.arrived != frames-test.lost ||
				handed != uint64(test.handed) {
				t.Errorf("%d frames received, %d from the kernel, want %d and %d", wire.arrived, handed, frames-test.lost, test.handed)
			}
			for _, a := range w.Attachments() {
				if want := test.handed > 0 && a.Interface == "near"; a.NoRedirects != want {
					t.Errorf("%s: NoRedirects = %t, want %t", a.Interface, a.NoRedirects, want)
				}
			}
		})
	}
}
