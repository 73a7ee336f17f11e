// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/millrace-lb/millrace/test/harness"
)

// path is one way from the client to the pod.
type path struct {
	name  string
	to    netip.Addr
	enter int
}

// sample is one measurement. Seconds of processor time are those of the whole machine.
type sample struct {
	offered, delivered float64
	// cpu is processor time in microseconds for each packet that the pod got.
	cpu float64
}

// result has the medians of a path.
type result struct {
	path
	most, steady sample
}

func (b *bench) paths() []path {
	var all []path
	for _, enter := range []int{sinkNode, otherNode} {
		all = append(all, path{"kube-proxy", externalIP, enter}, path{"Millrace", b.vip, enter})
	}
	return all
}

// idleTime is how long the machine is watched before the measurements.
const idleTime = time.Second

// maxOtherWork is the share of the processors that others may use meanwhile.
const maxOtherWork = 0.1

// warnOfOthers says so where the machine has other things to do than this.
func (b *bench) warnOfOthers(ctx context.Context) error {
	before, err := busySeconds()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(idleTime):
	}
	after, err := busySeconds()
	if err != nil {
		return err
	}
	share := (after - before) / idleTime.Seconds() / float64(runtime.NumCPU())
	if share > maxOtherWork {
		fmt.Fprintf(b.out, "WARNING: %.0f %% of this machine's processors are busy already: take the numbers for what they are\n", share*100)
	}
	return nil
}

// measureAll takes the paths in turn, so that what else the machine does meets all.
func (b *bench) measureAll(ctx context.Context) ([]result, error) {
	paths := append([]path{{name: "router", to: nowhere}}, b.paths()...)
	most, steady := make([][]sample, len(paths)), make([][]sample, len(paths))
	for round := range b.options.Rounds {
		fmt.Fprintf(b.out, "round %d of %d …\n", round+1, b.options.Rounds)
		for i, p := range paths {
			if p.enter != 0 {
				if err := b.enterBy(ctx, p.to, p.enter); err != nil {
					return nil, err
				}
			}
			if _, err := b.send(ctx, p, warmRate, warmTime); err != nil {
				return nil, fmt.Errorf("warm up %s: %w", p.name, err)
			}
			unlimited, err := b.measure(ctx, p, 0)
			if err != nil {
				return nil, fmt.Errorf("measure %s: %w", p.name, err)
			}
			limited, err := b.measure(ctx, p, b.options.Rate)
			if err != nil {
				return nil, fmt.Errorf("measure %s: %w", p.name, err)
			}
			most[i], steady[i] = append(most[i], unlimited), append(steady[i], limited)
		}
	}
	var results []result
	for i, p := range paths {
		results = append(results, result{path: p, most: median(most[i]), steady: median(steady[i])})
	}
	return results, nil
}

// warmRate and warmTime let flows be answered once, so that both paths know them.
const (
	warmRate = 5000
	warmTime = 2 * time.Second
)

// send sends to a path, at a rate or, where that is 0, as fast as it can.
func (b *bench) send(ctx context.Context, p path, rate int, duration time.Duration) (harness.Flood, error) {
	var flood harness.Flood
	raw, err := b.cluster.Exec(ctx, "client", filepath.Join(b.cluster.Root(), "bin", "echo"), "flood", "--udp",
		"--to", netip.AddrPortFrom(p.to, port).String(), "--from", source.String(), "--flows", strconv.Itoa(b.options.Flows),
		"--rate", strconv.Itoa(rate), "--duration", duration.String())
	if err != nil {
		return flood, err
	}
	return flood, json.Unmarshal(raw, &flood)
}

func (b *bench) measure(ctx context.Context, p path, rate int) (sample, error) {
	packetsBefore, err := b.delivered(ctx)
	if err != nil {
		return sample{}, err
	}
	busyBefore, err := busySeconds()
	if err != nil {
		return sample{}, err
	}
	flood, err := b.send(ctx, p, rate, b.options.Duration)
	if err != nil {
		return sample{}, err
	}
	busyAfter, err := busySeconds()
	if err != nil {
		return sample{}, err
	}
	packetsAfter, err := b.delivered(ctx)
	if err != nil {
		return sample{}, err
	}
	got := float64(packetsAfter - packetsBefore)
	s := sample{offered: float64(flood.Packets) / flood.Seconds, delivered: got / flood.Seconds}
	if p.enter == 0 {
		got = float64(flood.Packets)
	}
	if got == 0 {
		return sample{}, errors.New("no packet arrived at the pod")
	}
	s.cpu = (busyAfter - busyBefore) / got * 1e6
	return s, nil
}

// delivered returns how many packets the node has handed to the pod so far.
func (b *bench) delivered(ctx context.Context) (uint64, error) {
	raw, err := b.cluster.Exec(ctx, fmt.Sprintf("node%d", sinkNode), "ip", "-s", "-j", "link", "show", "dev", b.device)
	if err != nil {
		return 0, err
	}
	var links []struct {
		Stats64 struct {
			TX struct {
				Packets uint64 `json:"packets"`
			} `json:"tx"`
		} `json:"stats64"`
	}
	if err := json.Unmarshal(raw, &links); err != nil || len(links) != 1 {
		return 0, fmt.Errorf("read the counters of %s: %w: %q", b.device, err, raw)
	}
	return links[0].Stats64.TX.Packets, nil
}

// ticksPerSecond is the unit of /proc/stat, USER_HZ, on all architectures of today.
const ticksPerSecond = 100

// busySeconds returns the processor time that this machine has spent so far, on all
// its processors together, see proc_stat(5).
func busySeconds() (float64, error) {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(content), "\n")
	fields := strings.Fields(line)
	// user nice system idle iowait irq softirq
	const idle, iowait, counted = 4, 5, 7
	if len(fields) <= counted || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	busy := 0.0
	for i := 1; i <= counted; i++ {
		ticks, err := strconv.ParseFloat(fields[i], 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != idle && i != iowait {
			busy += ticks
		}
	}
	return busy / ticksPerSecond, nil
}

// median takes the median of each number for itself.
func median(samples []sample) sample {
	pick := func(number func(sample) float64) float64 {
		var all []float64
		for _, s := range samples {
			all = append(all, number(s))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	return sample{
		offered:   pick(func(s sample) float64 { return s.offered }),
		delivered: pick(func(s sample) float64 { return s.delivered }),
		cpu:       pick(func(s sample) float64 { return s.cpu }),
	}
}

func (b *bench) print(results []result) error {
	base := results[0]
	fmt.Fprintf(b.out, "\nUDP, 60-byte frames, %d flows, median of %d rounds of %s; all hosts share this machine's processors.\n\n",
		b.options.Flows, b.options.Rounds, b.options.Duration)
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "pod on\tpath\tsent/s\tarrived/s\tµs/packet at %d/s\tof them in the nodes\t\n", b.options.Rate)
	fmt.Fprintf(w, "-\tsender and router only\t%.0f\t-\t%.1f\t-\t\n", base.most.offered, base.steady.cpu)
	for _, r := range results[1:] {
		fmt.Fprintf(w, "%s\t%s\t%.0f\t%.0f\t%.1f\t%.1f\t\n", where(r.enter), r.name, r.most.offered, r.most.delivered,
			r.steady.cpu, r.steady.cpu-base.steady.cpu)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(b.out)
	for i := 1; i+1 < len(results); i += 2 {
		proxy, ours := results[i], results[i+1]
		fmt.Fprintf(b.out, "pod on %s: Millrace delivers %.2f times the packets of kube-proxy, for %.2f times the processor time in the nodes\n",
			where(ours.enter), ours.most.delivered/proxy.most.delivered,
			(ours.steady.cpu-base.steady.cpu)/(proxy.steady.cpu-base.steady.cpu))
	}
	fmt.Fprintln(b.out, "On veth the driver does not send what XDP encapsulates, so the kernel does: the second row of Millrace is slower than hardware.")
	return nil
}

func where(enter int) string {
	if enter == sinkNode {
		return "the node that the router chose"
	}
	return "another node"
}
