// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

type transmitFixture struct {
	*Dataplane
	first, second Uplink
	frame         []byte
}

func newTransmitFixture(t *testing.T, config Config) *transmitFixture {
	t.Helper()
	return newTransmitFixtureOn(t, config, newTap(t, "first"), newTap(t, "second"))
}

// newTransmitFixtureOn accepts the same uplink twice.
func newTransmitFixtureOn(t *testing.T, config Config, first, second Uplink) *transmitFixture {
	t.Helper()
	w := &transmitFixture{Dataplane: openDataplane(t, config), first: first, second: second}
	state := forwarding.NewState()
	state.Self = forwarding.Self{ID: 1, IPv4: ip("198.51.100.11")}
	state.Nodes[2] = forwarding.Node{IPv4: ip("198.51.100.12")}
	state.VIPs[vip4] = struct{}{}
	state.NodeTables[1] = forwarding.NewNodeTable()
	for row := range *state.NodeTables[1] {
		(*state.NodeTables[1])[row].Primary = 2
	}
	state.Frontends[forwarding.FrontendKey{VIP: vip4, Port: 80, Protocol: unix.IPPROTO_UDP}] = forwarding.Frontend{ID: 1, Table: 1}
	apply(t, w.Dataplane, forwarding.Diff(forwarding.NewState(), state)...)
	uplinks := []Uplink{w.first}
	if w.second.Index != w.first.Index {
		uplinks = append(uplinks, w.second)
	}
	if err := w.Attach(uplinks); err != nil {
		t.Fatal(err)
	}
	if err := w.TransmitDropsErr(); err != nil {
		t.Fatal(err)
	}
	w.hop(t, w.second)
	card, err := net.InterfaceByIndex(w.first.Index)
	if err != nil {
		t.Fatal(err)
	}
	// Ethernet, IPv4 and UDP with four bytes of data. Checksums are not verified.
	w.frame = append(append([]byte{}, card.HardwareAddr...), 2, 0, 0, 0, 0, 1, 8, 0,
		0x45, 0, 0, 32, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0, 198, 51, 100, 130)
	w.frame = append(append(w.frame, vip4.AsSlice()...), 0x9c, 0x40, 0, 80, 0, 12, 0, 0, 1, 2, 3, 4)
	return w
}

var hopAddress = [6]byte{2, 2}

func (w *transmitFixture) hop(t *testing.T, uplink Uplink) {
	t.Helper()
	hop := forwarding.Hop{Interface: uplink.Index, MTU: 1500, Source: [6]byte{2, 1}, Destination: hopAddress}
	if err := w.SetHops(map[forwarding.NodeID]forwarding.Hop{2: hop}); err != nil {
		t.Fatal(err)
	}
	if err := w.RenewLease(); err != nil {
		t.Fatal(err)
	}
}

// send runs the attached program on frames, and returns the lost ones.
func (w *transmitFixture) send(t *testing.T, frames int) (transmit, redirect uint64) {
	t.Helper()
	context := struct{ Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32 }{
		DataEnd: uint32(len(w.frame)), IngressIfindex: uint32(w.first.Index),
	}
	before, err := w.Counters()
	if err != nil {
		t.Fatal(err)
	}
	for range frames {
		// Under emulation, a call can outlive the lease.
		if err := w.RenewLease(); err != nil {
			t.Fatal(err)
		}
		// One at a time: the kernel sends a recycled frame as modified by the program.
		_, err = w.programs.Ingress.Run(&ebpf.RunOptions{
			Data: w.frame, Context: context, Repeat: 1, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	after, err := w.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return after.Drops["xdp_tx"] - before.Drops["xdp_tx"], after.Drops["xdp_redirect"] - before.Drops["xdp_redirect"]
}

// holdTap opens the interface without reading, so that its ring fills.
func holdTap(t *testing.T, name string) {
	t.Helper()
	tun, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(tun) })
	request, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(tun, unix.TUNSETIFF, request); err != nil {
		t.Fatal(err)
	}
}

// Frames rejected by a driver are counted.
func TestTransmitDrops(t *testing.T) {
	config := smallConfig(mountBPF(t))
	w := newTransmitFixture(t, config)
	const frames, ring = 64, 16
	check := func(step string, want uint64) {
		t.Helper()
		if transmit, redirect := w.send(t, frames); transmit != 0 || redirect != want {
			t.Errorf("%s: %d XDP_TX drops and %d redirect drops, want 0 and %d", step, transmit, redirect, want)
		}
	}
	run(t, "ip", "link", "set", "second", "down")
	check("interface down", frames)
	run(t, "ip", "link", "set", "second", "up", "mtu", "68")
	check("frames longer than the MTU", frames)
	run(t, "ip", "link", "set", "second", "mtu", "1500")
	check("full ring", frames)
	run(t, "ip", "link", "set", "second", "txqueuelen", "16")
	holdTap(t, "second")
	// The ring may contain a few frames of the kernel.
	const most = frames - ring/2
	transmit, filling := w.send(t, frames)
	if transmit != 0 || filling < frames-ring || filling > most {
		t.Errorf("with a full ring: %d XDP_TX drops and %d redirect drops, want 0 and %d to %d", transmit, filling, frames-ring, most)
	}
	check("a full ring", frames)
	want := []UplinkTransmitDrops{{Interface: "first"}, {Interface: "second", Redirect: 4*frames + filling}}
	if lost, err := w.TransmitDrops(); err != nil || !slices.Equal(lost, want) {
		t.Errorf("TransmitDrops = %+v, %v, want %+v", lost, err, want)
	}
	next := openDataplane(t, config)
	if err := next.Attach([]Uplink{w.first, w.second}); err != nil {
		t.Fatal(err)
	}
	next.hops = w.hops
	w.Dataplane = next
	w.hop(t, w.second)
	// The kernel releases the previous links asynchronously.
	await(t, "each loss is counted once", func() bool {
		_, redirect := w.send(t, frames)
		return redirect == frames
	})
	entries, err := os.ReadDir(filepath.Join(config.PinRoot, transmitDropsDirectory))
	if err != nil || len(entries) != 4 {
		t.Errorf("pins = %v, %v, want 4", entries, err)
	}
}

// Other XDP programs and other results of ours are not counted.
func TestTransmitDropsOfOthers(t *testing.T) {
	w := newTransmitFixture(t, smallConfig(mountBPF(t)))
	const abort, transmit, redirect = 0, 3, 4
	for name, test := range map[string]struct {
		program uint32
		action  uint64
		want    uint64
	}{
		"XDP_TX":                      {0, transmit, 1},
		"redirect counted separately": {0, redirect, 0},
		"aborted":                     {0, abort, 0},
		"another program":             {7, transmit, 0},
	} {
		t.Run(name, func(t *testing.T) {
			spec, err := bpf.LoadTransmitDrops()
			if err != nil {
				t.Fatal(err)
			}
			// A program that cannot be inspected has id 0.
			if err := spec.Variables["ingress_program"].Set(test.program); err != nil {
				t.Fatal(err)
			}
			var objects bpf.TransmitDropsObjects
			if err := spec.LoadAndAssign(&objects, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
				bpf.TransmitDropsMapUplinkTxDrops: w.maps.UplinkTxDrops, bpf.TransmitDropsMapDropCounts: w.maps.DropCounts,
			}}); err != nil {
				t.Fatal(err)
			}
			defer objects.Close()
			before := counted(t, &node{dataplane: w.Dataplane})
			arguments := make([]byte, 24)
			binary.NativeEndian.PutUint64(arguments[16:], test.action)
			if _, err := objects.OnXdpException.Run(&ebpf.RunOptions{Context: arguments}); err != nil {
				t.Fatal(err)
			}
			after := counted(t, &node{dataplane: w.Dataplane})
			if got := after.Drops["xdp_tx"] - before.Drops["xdp_tx"]; got != test.want {
				t.Errorf("counter increased by %d, want %d", got, test.want)
			}
		})
	}
}
