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

// FrontendCounters counts from the moment the frontend was written.
type FrontendCounters struct {
	// Packets and Bytes (of IP packets) are what routers handed to this node.
	Packets, Bytes uint64
	// Connections are new flows that got an endpoint on this node.
	Connections uint64
	// Drops are packets of the frontend that were not forwarded, by reason;
	// reasons without any are absent.
	Drops map[string]uint64
}

// Counters count since the maps were created.
type Counters struct {
	Frontends map[forwarding.FrontendKey]FrontendCounters
	// Drops are packets not forwarded, by reason; every reason is present.
	Drops map[string]uint64
	// Losses are frames that drivers did not take; Drops count them, too.
	Losses []UplinkLosses
	// Events are packets that took a detour, by its name.
	Events map[string]uint64
	// SamplesSkipped are dropped packets that were not sampled because a CPU had
	// sampled enough of them in that second, SamplesLost those because previous
	// samples had not been read.
	SamplesSkipped, SamplesLost uint64
}

// Connections are the flows that live.
type Connections struct {
	// TCP are established connections that are not closed and not idle for long,
	// UDP the same of flows that are answered.
	TCP, UDP uint64
	// HalfOpen are those that are not established, a minute old at most (UDP: ten
	// seconds).
	HalfOpen uint64
	// Capacity is what the tables hold of TCP, for both families.
	Capacity uint64
}

// names are the enumerations of the programs' sources, in lower case and without
// prefix, by number.
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
		// The last one is the number of the others.
		for _, value := range found.Values[:len(found.Values)-1] {
			all[enum] = append(all[enum], strings.ToLower(strings.TrimPrefix(value.Name, prefix)))
		}
	}
	return all, nil
})

// DropReasons are the names of all reasons for which packets are dropped.
func DropReasons() ([]string, error) {
	all, err := names()
	if err != nil {
		return nil, err
	}
	// The first one means that a packet was not dropped.
	return all["drop_reason"][1:], nil
}

// Counters reads the counters.
func (d *Dataplane) Counters() (Counters, error) {
	return d.CountersOf(func(forwarding.FrontendKey) bool { return true })
}

// CountersOf reads the counters, of frontends those that are wanted: each costs a system call.
// Without wanted it reads none of them.
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
	if counters.Losses, err = d.Losses(); err != nil {
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

// readNamed sums a per-CPU array of counters.
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

// Connections counts the flows that live. It walks the tables in the kernel, some
// ten nanoseconds for each entry that was ever used.
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
