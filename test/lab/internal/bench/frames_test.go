// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/test/isolated"
	"github.com/millrace-lb/millrace/test/lab/internal/netns"
)

func TestMain(m *testing.M) { isolated.Main(m) }

var station = net.HardwareAddr{2, 0, 0, 0, 0, 7}

func testFrame() []byte { return udpFrame(station, source.Addr(), netip.AddrPortFrom(nowhere, port)) }

func TestUDPFrame(t *testing.T) {
	frame := testFrame()
	if sum := internetChecksum(frame[ipHeader:sourcePort]); sum != 0 {
		t.Errorf("the IPv4 header's checksum is wrong by %#x", sum)
	}
	ip := frame[ipHeader:]
	if from, to := netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20])); from != source.Addr() || to != nowhere {
		t.Errorf("from %s to %s", from, to)
	}
	if length := binary.BigEndian.Uint16(ip[2:]); int(length) != len(ip) {
		t.Errorf("the header says %d bytes, there are %d", length, len(ip))
	}
}

// run runs an XDP program once.
func run(t *testing.T, program *ebpf.Program, frame []byte) (action uint32, after []byte) {
	t.Helper()
	after = make([]byte, len(frame))
	action, err := program.Run(&ebpf.RunOptions{Data: frame, DataOut: after, Repeat: 1})
	if err != nil {
		t.Fatal(err)
	}
	return action, after
}

func TestSender(t *testing.T) {
	const flows, loopback, redirect = 3, 1, 4
	program, err := sender(testFrame(), flows, loopback)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	seen := map[uint16]bool{}
	for range 200 {
		action, frame := run(t, program, make([]byte, frameLength))
		seen[binary.BigEndian.Uint16(frame[sourcePort:])] = true
		copy(frame[sourcePort:], []byte{0, 0})
		if action != redirect || !bytes.Equal(frame, testFrame()) {
			t.Fatalf("action %d, frame %x, want %x", action, frame, testFrame())
		}
	}
	for flow := range uint16(flows) {
		if !seen[firstPort+flow] || len(seen) != flows {
			t.Errorf("source ports %v, want %d from %d on", seen, flows, firstPort)
		}
	}
}

func TestReflector(t *testing.T) {
	program, err := reflector()
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	action, frame := run(t, program, testFrame())
	want := testFrame()
	copy(want, testFrame()[6:12])
	copy(want[6:], station)
	if action != xdpTX || !bytes.Equal(frame, want) {
		t.Errorf("action %d, frame %x, want %x", action, frame, want)
	}
}

func TestSink(t *testing.T) {
	count, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer count.Close()
	program, err := sink(count)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	change := func(offset int, value byte) []byte {
		frame := testFrame()
		frame[offset] = value
		return frame
	}
	const tcp = 6
	for name, test := range map[string]struct {
		frame []byte
		want  uint32
	}{
		"ours":         {testFrame(), xdpDrop},
		"encapsulated": {append(testFrame(), make([]byte, geneve)...), xdpDrop},
		"by the CNI":   {append(testFrame(), make([]byte, vxlan)...), xdpDrop},
		"longer":       {append(testFrame(), 0), xdpPass},
		"shorter":      {testFrame()[:frameLength-1], xdpPass},
		"ARP":          {change(etherType+1, 6), xdpPass},
		"TCP":          {change(ipProtocol, tcp), xdpPass},
	} {
		f := forwarder{bench: &bench{}, count: count}
		before, err := f.reading()
		if err != nil {
			t.Fatal(err)
		}
		action, _ := run(t, program, test.frame)
		after, err := f.reading()
		if err != nil {
			t.Fatal(err)
		}
		counted := after.arrived - before.arrived
		if action != test.want || (counted == 1) != (test.want == xdpDrop) {
			t.Errorf("%s: action %d, counted %d, want action %d", name, action, counted, test.want)
		}
	}
}

// A link whose other end sends everything back stands for the node.
func TestForwarder(t *testing.T) {
	// The time of this thread is measured.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const node = "node"
	if err := netns.AddVeth(otherNodeName, node); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netns.DeletePort(otherNodeName); err != nil {
			t.Error(err)
		}
	}()
	b := &bench{options: Options{Rounds: 2, Duration: time.Millisecond, Flows: 10}, out: t.Output(), vip: nowhere}
	f, err := b.newForwarder(station)
	if err != nil {
		t.Fatal(err)
	}
	if err := netns.AttachXDP(node, f.reflect); err != nil {
		t.Fatal(err)
	}
	results, err := f.measureAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		for _, s := range r.samples {
			if s.arrived <= 0 || s.cost <= 0 {
				t.Errorf("%s: %+v", r.name, s)
			}
		}
	}
	if err := f.remove(); err != nil {
		t.Error(err)
	}
	if _, err := net.InterfaceByName(nearEnd); err == nil {
		t.Errorf("link %s is left", nearEnd)
	}
}
