// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// FrontendCounters counts since the frontend was written.
type FrontendCounters struct {
	// Packets and Bytes (of IP packets) count packets that arrived from routers.
	Packets, Bytes uint64
	// Connections counts new flows to an endpoint on this node.
	Connections uint64
	// Drops counts dropped packets by reason; reasons without drops are absent.
	Drops map[string]uint64
}

// Counters counts since the maps were created.
type Counters struct {
	Frontends map[forwarding.FrontendKey]FrontendCounters
	// Drops counts dropped packets by reason; every reason is present.
	Drops map[string]uint64
	// TransmitDrops counts frames rejected by drivers, which Drops includes.
	TransmitDrops []UplinkTransmitDrops
	// Events counts packets outside the common path, by event.
	Events map[string]uint64
	// SamplesSkipped counts drops above a CPU's sampling rate, SamplesLost drops while the ring buffer was full.
	SamplesSkipped, SamplesLost uint64
}

// Connections counts live flows.
type Connections struct {
	// TCP counts established connections that are neither closed nor timed out, UDP answered flows.
	TCP, UDP uint64
	// HalfOpen counts flows that are not established, at most 60 s (UDP: 10 s) old.
	HalfOpen uint64
	// Capacity is the size of the TCP tables of both families.
	Capacity uint64
}

// names returns the values of the programs' enums by number, in lower case and without prefix.
var names = sync.OnceValues(func() (map[string][]string, error) {
	spec, err := bpf.LoadDatapath()
	if err != nil {
		return nil, fmt.Errorf("read the compiled BPF programs: %w", err)
	}
	all := map[string][]string{}
	for enum, prefix := range map[string]string{"drop_reason": "DROP_", "event": "EVENT_"} {
		var found *btf.Enum
		if err := spec.Types.TypeByName(enum, &found); err != nil {
			return nil, fmt.Errorf("read enum %s of the compiled BPF programs: %w", enum, err)
		}
		for _, value := range found.Values[:len(found.Values)-1] {
			all[enum] = append(all[enum], strings.ToLower(strings.TrimPrefix(value.Name, prefix)))
		}
	}
	return all, nil
})

// DropReasons returns the names of all drop reasons.
func DropReasons() ([]string, error) {
	all, err := names()
	if err != nil {
		return nil, err
	}
	// The first value is DROP_NONE.
	return all["drop_reason"][1:], nil
}

// Counters reads all counters.
func (d *Dataplane) Counters() (Counters, error) {
	return d.CountersOf(func(forwarding.FrontendKey) bool { return true })
}

// CountersOf is Counters of wanted frontends, each of which costs a system call; nil excludes all.
func (d *Dataplane) CountersOf(wanted func(forwarding.FrontendKey) bool) (Counters, error) {
	counters := Counters{Frontends: map[forwarding.FrontendKey]FrontendCounters{}}
	all, err := names()
	if err != nil {
		return Counters{}, err
	}
	if counters.Drops, err = readNamed(d.maps.DropCounts, all["drop_reason"]); err != nil {
		return Counters{}, err
	}
	delete(counters.Drops, all["drop_reason"][bpf.DatapathDropReasonDROP_NONE])
	if counters.TransmitDrops, err = d.TransmitDrops(); err != nil {
		return Counters{}, err
	}
	if counters.Events, err = readNamed(d.maps.EventCounts, all["event"]); err != nil {
		return Counters{}, err
	}
	if counters.SamplesSkipped, counters.SamplesLost, err = d.unsampled(); err != nil {
		return Counters{}, err
	}
	if wanted == nil {
		return counters, nil
	}
	counters.Frontends, err = d.countersOf(wanted, all["drop_reason"])
	return counters, err
}

func (d *Dataplane) countersOf(wanted func(forwarding.FrontendKey) bool, reasons []string) (map[forwarding.FrontendKey]FrontendCounters, error) {
	state := forwarding.NewState()
	if err := d.dumpFrontends(state); err != nil {
		return nil, fmt.Errorf("read map frontends: %w", err)
	}
	drops, err := d.frontendDrops(reasons)
	if err != nil {
		return nil, err
	}
	counters := map[forwarding.FrontendKey]FrontendCounters{}
	for key, frontend := range state.Frontends {
		if !wanted(key) {
			continue
		}
		counter, err := d.frontendCounters(frontend.ID)
		if err != nil {
			return nil, err
		}
		counter.Drops = drops[frontend.ID]
		counters[key] = counter
	}
	return counters, nil
}

func (d *Dataplane) frontendCounters(id forwarding.FrontendID) (FrontendCounters, error) {
	var perCPU []bpf.DatapathFrontendCounter
	if err := d.maps.FrontendCounts.Lookup(uint32(id), &perCPU); err != nil {
		return FrontendCounters{}, fmt.Errorf("read counters of frontend %d: %w", id, err)
	}
	var sum FrontendCounters
	for _, counter := range perCPU {
		sum.Packets += counter.Packets
		sum.Bytes += counter.Bytes
		sum.Connections += counter.Connections
	}
	return sum, nil
}

func readNamed(m *ebpf.Map, names []string) (map[string]uint64, error) {
	counts := make(map[string]uint64, len(names))
	for i, name := range names {
		var perCPU []uint64
		if err := m.Lookup(uint32(i), &perCPU); err != nil {
			return nil, fmt.Errorf("read counter %s: %w", name, err)
		}
		for _, count := range perCPU {
			counts[name] += count
		}
	}
	return counts, nil
}

// Connections counts live flows. It iterates over the tables in the kernel, about 10 ns per entry ever used.
func (d *Dataplane) Connections() (Connections, error) {
	var counts bpf.DatapathFlowCounts
	_, err := d.programs.CountConnections.Run(&ebpf.RunOptions{Context: counts, ContextOut: &counts})
	if err != nil {
		return Connections{}, fmt.Errorf("count connections: %w", err)
	}
	return Connections{
		TCP:      counts.Tcp,
		UDP:      counts.Udp,
		HalfOpen: counts.HalfOpen,
		Capacity: 2 * uint64(d.connections),
	}, nil
}
