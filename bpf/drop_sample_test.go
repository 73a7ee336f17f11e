// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
)

type sampleCase struct {
	name     string
	reason   bpf.DatapathDropReason
	frame    []byte
	from, to netip.AddrPort
	protocol uint8
	length   int
	port     uint16
}

func sampleCases(f family) []sampleCase {
	unused, empty := f.tcp(9, "S"), f.udp(portNoTable)
	cut := f.tcp(portCluster, "S")
	moved := f.tcp(portClusterEmpty, "S")
	forged := f.tcp(portCluster, "S").arrived(f, 0).with(func(t *tunnel) { t.from = f.other })
	node, _ := flowHash(forged.inner)
	anyPort := func(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr(), 0) }
	return []sampleCase{
		{"unused port", bpf.DatapathDropReasonDROP_NO_FRONTEND, unused.frame(), unused.from, unused.to, 6, len(unused.ip()), 0},
		{"no endpoint", bpf.DatapathDropReasonDROP_NO_ENDPOINT, empty.frame(), empty.from, empty.to, 17, len(empty.ip()), portNoTable},
		{
			"no whole TCP header", bpf.DatapathDropReasonDROP_MALFORMED, cut.frame()[:len(cut.frame())-len(cut.payload)-1],
			anyPort(cut.from), anyPort(cut.to), 6, len(cut.ip()), 0,
		},
		{
			"inside an encapsulated one", bpf.DatapathDropReasonDROP_NO_ENDPOINT, moved.arrived(f, 0).frame(),
			moved.from, moved.to, 6, len(moved.ip()), portClusterEmpty,
		},
		{
			"encapsulated by a host that is no node", bpf.DatapathDropReasonDROP_TUNNEL_SOURCE, forged.frame(),
			netip.AddrPortFrom(f.other, 49152+uint16(node&0x3fff)), netip.AddrPortFrom(f.self, 6081), 17, len(forged.ip()), 0,
		},
	}
}

func TestDropSamples(t *testing.T) {
	w := newWorld(t)
	reader := w.samples(t)
	for _, f := range families {
		for _, test := range sampleCases(f) {
			t.Run(f.name+"/"+test.name, func(t *testing.T) {
				w.forget(t)
				reader.all(t)
				before := monotonic(t)
				if got := w.ingress(t, test.frame); got.verdict != xdpDrop {
					t.Fatalf("verdict %v, want XDP_DROP", got.verdict)
				}
				samples := reader.all(t)
				if len(samples) != 1 {
					t.Fatalf("%d samples, want 1", len(samples))
				}
				got := samples[0]
				if now := monotonic(t); got.Time < before || got.Time > now {
					t.Errorf("time %d, want between %d and %d", got.Time, before, now)
				}
				want := bpf.DatapathDropSample{
					Time: got.Time, Length: uint32(test.length), Ifindex: uint32(w.uplink), Reason: uint32(test.reason),
				}
				want.Flow = flowOf(f, test.from, test.to, test.protocol)
				if test.port != 0 {
					want.Frontend = f.frontendID(test.port)
				}
				if got != want {
					t.Errorf("sample %+v, want %+v", got, want)
				}
				if test.port == 0 {
					return
				}
				key := bpf.DatapathFrontendDrop{Frontend: want.Frontend, Reason: want.Reason}
				if n := sum(t, w.FrontendDrops, key); n == 0 {
					t.Error("the frontend's drop counter was not incremented")
				}
			})
		}
	}
}

func monotonic(t testing.TB) uint64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return uint64(now.Nano())
}

func flowOf(f family, from, to netip.AddrPort, protocol uint8) bpf.DatapathFlow {
	flow := bpf.DatapathFlow{
		Client: address(from.Addr()), Vip: address(to.Addr()),
		ClientPort: network16(from.Port()), VipPort: network16(to.Port()),
		Protocol: protocol, Family: 2,
	}
	if f.vip.Is6() {
		flow.Family = 10
	}
	return flow
}

// The sample of a dropped reply contains the flow of its client.
func TestReplyDropSample(t *testing.T) {
	w := newWorld(t)
	reader := w.samples(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			udp, reply := w.cutReply(t, f)
			reader.all(t)
			w.runEgress(t, reply)
			samples := reader.all(t)
			if len(samples) != 1 {
				t.Fatalf("%d samples, want 1", len(samples))
			}
			got := samples[0]
			want := bpf.DatapathDropSample{
				Time: got.Time, Length: uint32(len(reply) - 14), Ifindex: uint32(w.uplink),
				Reason: uint32(bpf.DatapathDropReasonDROP_REPLY_REWRITE),
				Flow:   flowOf(f, udp.from, f.pods[0], 17),
			}
			if got != want {
				t.Errorf("sample %+v, want %+v", got, want)
			}
		})
	}
}

// The samples of a flood are limited per second, and all other drops are counted.
func TestSamplesAreBounded(t *testing.T) {
	w := newWorld(t)
	reader := w.samples(t)
	w.forget(t)
	const packets = 1_000_000
	frame := v4.tcp(portNoTable, "S").frame()
	reason := uint32(bpf.DatapathDropReasonDROP_NO_ENDPOINT)
	key := bpf.DatapathFrontendDrop{Frontend: v4.frontendID(portNoTable), Reason: reason}
	reader.all(t)
	before := sum(t, w.DropCounts, reason)
	start := time.Now()
	code, err := w.Ingress.Run(&ebpf.RunOptions{
		Data: frame, Repeat: packets, Context: xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(w.uplink)},
	})
	if err != nil || verdict(code) != xdpDrop {
		t.Fatalf("verdict %v, error %v", verdict(code), err)
	}
	seconds := int(time.Since(start)/time.Second) + 1
	samples := len(reader.all(t))
	// The kernel may migrate the run to another CPU with its own limit.
	if most := 16 * (seconds + 1) * ebpf.MustPossibleCPU(); samples == 0 || samples > most {
		t.Errorf("%d samples in %d s, want at most %d", samples, seconds, most)
	}
	skipped, lost := w.unsampled(t, reason)
	if total := uint64(samples) + skipped + lost; total != packets || lost != 0 {
		t.Errorf("%d samples, %d skipped, %d lost: total %d, want %d and no losses", samples, skipped, lost, total, packets)
	}
	if n := sum(t, w.DropCounts, reason) - before; n != packets {
		t.Errorf("drop counter increased by %d, want %d", n, packets)
	}
	if n := sum(t, w.FrontendDrops, key); n != packets {
		t.Errorf("frontend drop counter = %d, want %d", n, packets)
	}
}

// Without a reader, samples are lost and counted.
func TestUnreadSamplesAreLost(t *testing.T) {
	w := newWorld(t)
	reason := uint32(bpf.DatapathDropReasonDROP_NO_FRONTEND)
	frame := v4.tcp(9, "S").frame()
	// Each sample takes 8 additional bytes of the ring.
	room := 256*1024/(binary.Size(bpf.DatapathDropSample{})+8) + 1
	for taken := 0; taken <= room; taken += 16 {
		put(t, w.DropSampling, reason, make([]bpf.DatapathSampling, ebpf.MustPossibleCPU()))
		run := &ebpf.RunOptions{
			Data: frame, Repeat: 16, Context: xdpContext{DataEnd: uint32(len(frame)), IngressIfindex: uint32(w.uplink)},
		}
		if _, err := w.Ingress.Run(run); err != nil {
			t.Fatal(err)
		}
	}
	if _, lost := w.unsampled(t, reason); lost == 0 {
		t.Error("no sample was counted as lost")
	}
	if got := len(w.samples(t).all(t)); got > room {
		t.Errorf("%d samples, want at most %d", got, room)
	}
}

func (w *world) unsampled(t *testing.T, reason uint32) (skipped, lost uint64) {
	t.Helper()
	var perCPU []bpf.DatapathSampling
	if err := w.DropSampling.Lookup(reason, &perCPU); err != nil {
		t.Fatal(err)
	}
	for _, s := range perCPU {
		skipped += s.Skipped
		lost += s.Lost
	}
	return skipped, lost
}

func clearSampling(t testing.TB, w *world) {
	t.Helper()
	zero := make([]bpf.DatapathSampling, ebpf.MustPossibleCPU())
	for i := range uint32(bpf.DatapathDropReasonDROP_REASONS) {
		put(t, w.DropSampling, i, zero)
	}
}

type sampleReader struct{ *ringbuf.Reader }

func (w *world) samples(t *testing.T) sampleReader {
	t.Helper()
	reader, err := ringbuf.NewReader(w.DropSamples)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	return sampleReader{reader}
}

func (r sampleReader) all(t *testing.T) []bpf.DatapathDropSample {
	t.Helper()
	r.SetDeadline(time.Unix(1, 0))
	var samples []bpf.DatapathDropSample
	for {
		record, err := r.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return samples
		}
		if err != nil {
			t.Fatal(err)
		}
		var sample bpf.DatapathDropSample
		if _, err := binary.Decode(record.RawSample, binary.NativeEndian, &sample); err != nil {
			t.Fatal(err)
		}
		samples = append(samples, sample)
	}
}
