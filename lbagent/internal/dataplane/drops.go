// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Drop is a sampled dropped packet: at most 16 per second, reason and CPU.
type Drop struct {
	Time   time.Time
	Reason string
	// Source and Destination are those of the packet as sent by the client. Of a reply, Source is the client,
	// and Destination the VIP, or the endpoint before translation. Ports are zero if unknown.
	Source, Destination netip.AddrPort
	Protocol            uint8
	// Length is the size of the IP packet in bytes, header included.
	Length int
	// Interface is the index of the ingress interface, or of a reply's egress interface.
	Interface int
	// Frontend is zero if no frontend matched.
	Frontend forwarding.FrontendID
}

// DropReader reads drop samples.
type DropReader struct {
	ring    *ringbuf.Reader
	reasons []string
}

// OpenDrops returns a reader. A node supports only one at a time.
func (d *Dataplane) OpenDrops() (*DropReader, error) {
	all, err := names()
	if err != nil {
		return nil, err
	}
	ring, err := ringbuf.NewReader(d.maps.DropSamples)
	if err != nil {
		return nil, fmt.Errorf("open the samples of dropped packets: %w", err)
	}
	return &DropReader{ring: ring, reasons: all["drop_reason"]}, nil
}

// Next blocks until the next sample. After Close it returns io.EOF.
func (r *DropReader) Next() (Drop, error) {
	record, err := r.ring.Read()
	if errors.Is(err, ringbuf.ErrClosed) {
		return Drop{}, io.EOF
	}
	if err != nil {
		return Drop{}, fmt.Errorf("read samples of dropped packets: %w", err)
	}
	return decodeDrop(record.RawSample, r.reasons)
}

// Close unblocks Next.
func (r *DropReader) Close() error {
	if err := r.ring.Close(); err != nil {
		return fmt.Errorf("close the samples of dropped packets: %w", err)
	}
	return nil
}

func decodeDrop(raw []byte, reasons []string) (Drop, error) {
	var sample bpf.DatapathDropSample
	if _, err := binary.Decode(raw, binary.NativeEndian, &sample); err != nil {
		return Drop{}, fmt.Errorf("decode a sample of %d bytes: %w", len(raw), err)
	}
	at, err := wallClock(sample.Time)
	if err != nil {
		return Drop{}, err
	}
	flow := sample.Flow
	return Drop{
		Time:        at,
		Reason:      reasonName(reasons, sample.Reason),
		Source:      netip.AddrPortFrom(decodeAddress(flow.Client), hostPort(flow.ClientPort)),
		Destination: netip.AddrPortFrom(decodeAddress(flow.Vip), hostPort(flow.VipPort)),
		Protocol:    flow.Protocol,
		Length:      int(sample.Length),
		Interface:   int(sample.Ifindex),
		Frontend:    forwarding.FrontendID(sample.Frontend),
	}, nil
}

// reasonName accepts unknown reasons, because programs of another version run during an upgrade.
func reasonName(reasons []string, reason uint32) string {
	if int(reason) < len(reasons) {
		return reasons[reason]
	}
	return fmt.Sprintf("reason_%d", reason)
}

func wallClock(nanoseconds uint64) (time.Time, error) {
	var monotonic unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic); err != nil {
		return time.Time{}, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return time.Now().Add(time.Duration(int64(nanoseconds) - monotonic.Nano())), nil
}

// InterfaceName returns the name of an interface, or its index if it no longer exists.
func InterfaceName(index int) string {
	found, err := net.InterfaceByIndex(index)
	if err != nil {
		return fmt.Sprintf("interface %d", index)
	}
	return found.Name
}

// DropCounts contains the counters of dropped packets.
type DropCounts struct {
	// Reasons counts all dropped packets, by reason.
	Reasons map[string]uint64
	// Frontends counts dropped packets per frontend; reasons without drops are absent.
	Frontends map[forwarding.FrontendKey]map[string]uint64
}

// DropCounts reads only the counters of dropped packets, and the frontends only if any has drops.
func (d *Dataplane) DropCounts() (DropCounts, error) {
	all, err := names()
	if err != nil {
		return DropCounts{}, err
	}
	reasons := all["drop_reason"]
	drops, err := d.frontendDrops(reasons)
	if err != nil {
		return DropCounts{}, err
	}
	counts := DropCounts{Frontends: map[forwarding.FrontendKey]map[string]uint64{}}
	if len(drops) > 0 {
		state := forwarding.NewState()
		if err := d.dumpFrontends(state); err != nil {
			return DropCounts{}, fmt.Errorf("read map frontends: %w", err)
		}
		for key, frontend := range state.Frontends {
			if of := drops[frontend.ID]; len(of) > 0 {
				counts.Frontends[key] = of
			}
		}
	}
	if counts.Reasons, err = readNamed(d.maps.DropCounts, reasons); err != nil {
		return DropCounts{}, err
	}
	delete(counts.Reasons, reasons[bpf.DatapathDropReasonDROP_NONE])
	return counts, nil
}

func (d *Dataplane) frontendDrops(reasons []string) (map[forwarding.FrontendID]map[string]uint64, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count CPUs: %w", err)
	}
	drops := map[forwarding.FrontendID]map[string]uint64{}
	err = readPerCPUMap(d.maps.FrontendDrops, cpus, func(key bpf.DatapathFrontendDrop, perCPU []uint64) {
		id := forwarding.FrontendID(key.Frontend)
		if drops[id] == nil {
			drops[id] = map[string]uint64{}
		}
		for _, count := range perCPU {
			drops[id][reasonName(reasons, key.Reason)] += count
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read map %s: %w", bpf.DatapathMapFrontendDrops, err)
	}
	return drops, nil
}

func readPerCPUMap[K, V any](m *ebpf.Map, cpus int, visit func(key K, perCPU []V)) error {
	size := min(batchSize, int(m.MaxEntries()))
	keys, values := make([]K, size), make([]V, size*cpus)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		done := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !done {
			return err
		}
		for i := range n {
			visit(keys[i], values[i*cpus:(i+1)*cpus])
		}
		if done {
			return nil
		}
	}
}

func (d *Dataplane) unsampled() (skipped, lost uint64, err error) {
	for reason := range uint32(bpf.DatapathDropReasonDROP_REASONS) {
		var perCPU []bpf.DatapathSampling
		if err := d.maps.DropSampling.Lookup(reason, &perCPU); err != nil {
			return 0, 0, fmt.Errorf("read map %s: %w", bpf.DatapathMapDropSampling, err)
		}
		for _, sampling := range perCPU {
			skipped += sampling.Skipped
			lost += sampling.Lost
		}
	}
	return skipped, lost, nil
}
