// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/millrace-lb/millrace/test/lab/internal/config"
	"github.com/millrace-lb/millrace/test/lab/internal/netns"
)

// A forwarding node is measured alone: an XDP program injects frames at the far end of its link, as a NIC
// does, and another one drops and counts the node's frames, without a sender's stack, router or bridge.

const (
	// nearEnd and farEnd are a veth without a node, for the common cost of all ways.
	nearEnd, farEnd = "bench-near", "bench-far"
	repeats         = 1 << 16
	// forwardWarmUp is the time to learn flows and wake up CPUs.
	forwardWarmUp = 200 * time.Millisecond
)

type route struct {
	name   string
	sender *ebpf.Program
	far    *ebpf.Program
}

type forwarder struct {
	*bench
	port    string
	count   *ebpf.Map
	sink    *ebpf.Program
	reflect *ebpf.Program
	ways    []route
}

// newForwarder loads the programs and prepares the links in the fabric's namespace.
func (b *bench) newForwarder(station net.HardwareAddr) (f *forwarder, err error) {
	f = &forwarder{bench: b, port: otherNodeName}
	f.count, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return f, fmt.Errorf("create the map that counts frames: %w", err)
	}
	if f.sink, err = sink(f.count); err != nil {
		return f, err
	}
	if f.reflect, err = reflector(); err != nil {
		return f, err
	}
	if err := netns.AddVeth(nearEnd, farEnd); err != nil {
		return f, err
	}
	for _, end := range []string{nearEnd, f.port} {
		if err := netns.AttachXDP(end, f.sink); err != nil {
			return f, err
		}
	}
	return f, f.addWays(station)
}

func (f *forwarder) addWays(station net.HardwareAddr) error {
	for _, w := range []struct {
		name, by string
		to       netip.Addr
		far      *ebpf.Program
	}{
		noNode:       {"no node", nearEnd, discardedIP, f.sink},
		sentBack:     {"sent back", nearEnd, discardedIP, f.reflect},
		forwardProxy: {"kube-proxy", f.port, externalIP, nil},
		forwardOurs:  {"Millrace", f.port, f.vip, nil},
	} {
		by, err := net.InterfaceByName(w.by)
		if err != nil {
			return fmt.Errorf("find the link %s: %w", w.by, err)
		}
		program, err := sender(udpFrame(station, source.Addr(), netip.AddrPortFrom(w.to, port)), f.options.Flows, by.Index)
		if err != nil {
			return err
		}
		f.ways = append(f.ways, route{w.name, program, w.far})
	}
	return nil
}

func (f *forwarder) remove() error {
	err := errors.Join(netns.AttachPass(f.port), netns.DeletePort(nearEnd))
	for _, w := range f.ways {
		w.sender.Close()
	}
	for _, program := range []*ebpf.Program{f.sink, f.reflect} {
		if program != nil {
			program.Close()
		}
	}
	if f.count != nil {
		f.count.Close()
	}
	return err
}

func (b *bench) measureForwarding(ctx context.Context) (results []result, err error) {
	raw, err := b.cluster.Exec(ctx, otherNodeName, "cat", "/sys/class/net/eth0/address")
	if err != nil {
		return nil, err
	}
	station, err := net.ParseMAC(strings.TrimSpace(string(raw)))
	if err != nil {
		return nil, fmt.Errorf("read the Ethernet address of %s: %w", otherNodeName, err)
	}
	err = netns.Do(config.FabricNamespace, func() (err error) {
		f, err := b.newForwarder(station)
		defer func() { err = errors.Join(err, f.remove()) }()
		if err != nil {
			return err
		}
		// Same priority as the client in send.
		if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20); err != nil {
			return fmt.Errorf("go before other processes: %w", err)
		}
		results, err = f.measureAll(ctx)
		return err
	})
	return results, err
}

func (f *forwarder) measureAll(ctx context.Context) ([]result, error) {
	var results []result
	for _, w := range f.ways {
		results = append(results, result{path: path{name: w.name}})
	}
	for round := range f.options.Rounds {
		fmt.Fprintf(f.out, "node alone, round %d of %d …\n", round+1, f.options.Rounds)
		for i, w := range f.ways {
			s, err := f.measureWay(ctx, w)
			if err != nil {
				return nil, fmt.Errorf("measure %s: %w", w.name, err)
			}
			results[i].samples = append(results[i].samples, s)
		}
	}
	return results, nil
}

func (f *forwarder) measureWay(ctx context.Context, w route) (sample, error) {
	if w.far != nil {
		if err := netns.AttachXDP(farEnd, w.far); err != nil {
			return sample{}, err
		}
	}
	if _, err := f.sendFrames(ctx, w, forwardWarmUp); err != nil {
		return sample{}, err
	}
	return f.sendFrames(ctx, w, f.options.Duration)
}

// sendFrames sends for a time. The kernel processes a veth's frames on the sending CPU after each batch of
// 64, in the time of this thread or of ksoftirqd.
func (f *forwarder) sendFrames(ctx context.Context, w route, duration time.Duration) (sample, error) {
	before, err := f.reading()
	if err != nil {
		return sample{}, err
	}
	start, sent := time.Now(), 0
	for time.Since(start) < duration {
		if err := ctx.Err(); err != nil {
			return sample{}, err
		}
		_, err := w.sender.Run(&ebpf.RunOptions{
			Data: make([]byte, frameLength), Repeat: repeats, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES,
		})
		if err != nil {
			return sample{}, fmt.Errorf("send frames: %w", err)
		}
		sent += repeats
	}
	elapsed := time.Since(start).Seconds()
	after, err := f.reading()
	if err != nil {
		return sample{}, err
	}
	arrived := float64(after.arrived - before.arrived)
	if arrived == 0 {
		return sample{}, errors.New("the node sent no frame: `bin/lab kubectl -n millrace-system logs` of its agent may tell why")
	}
	return sample{
		sent:    float64(sent) / elapsed,
		arrived: arrived / elapsed,
		cost:    float64(after.spent-before.spent) / arrived,
	}, nil
}

type reading struct {
	arrived uint64
	// spent is the CPU time of this thread and of ksoftirqd.
	spent time.Duration
}

func (f *forwarder) reading() (reading, error) {
	var perCPU []uint64
	if err := f.count.Lookup(uint32(0), &perCPU); err != nil {
		return reading{}, fmt.Errorf("read how many frames arrived: %w", err)
	}
	var now reading
	for _, n := range perCPU {
		now.arrived += n
	}
	var own unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &own); err != nil {
		return reading{}, fmt.Errorf("read the time of this thread: %w", err)
	}
	softirq, err := spent(f.threads)
	now.spent = time.Duration(own.Nano()) + softirq
	return now, err
}
