// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/millrace-lb/millrace/test/harness"
)

// path is a path from the client to the pod. If enter is zero it ends at the router.
type path struct {
	name  string
	to    netip.Addr
	enter int
}

type sample struct {
	// sent and arrived are in packets per second.
	sent, arrived float64
	// cost is CPU time in nanoseconds per received packet.
	cost float64
}

type result struct {
	path
	samples []sample
}

func (b *bench) paths() []path {
	all := []path{{name: "sender and router", to: discardedIP}}
	for _, enter := range []int{sinkNode, otherNode} {
		all = append(all, path{"kube-proxy", externalIP, enter}, path{"Millrace", b.vip, enter})
	}
	return all
}

const idleTime = time.Second

// maxOtherWork is the CPU share that other processes may use.
const maxOtherWork = 0.1

func (b *bench) warnOfOthers(ctx context.Context) error {
	share, err := busyShare(ctx, idleTime)
	if err == nil && share > maxOtherWork {
		fmt.Fprintf(b.out, "WARNING: %.0f %% of this machine's processors are busy already: packets per second say little then, and caches are shared\n", share*100)
	}
	return err
}

// measureAll alternates between paths, so that interference affects all of them.
func (b *bench) measureAll(ctx context.Context) ([]result, error) {
	var results []result
	for _, p := range b.paths() {
		results = append(results, result{path: p})
	}
	for round := range b.options.Rounds {
		fmt.Fprintf(b.out, "round %d of %d …\n", round+1, b.options.Rounds)
		for i := range results {
			s, err := b.measureOnce(ctx, results[i].path)
			if err != nil {
				return nil, fmt.Errorf("measure %s: %w", results[i].name, err)
			}
			results[i].samples = append(results[i].samples, s)
		}
	}
	return results, nil
}

// warmRate and warmTime make both paths learn the flows from answers.
const (
	warmRate = 5000
	warmTime = 2 * time.Second
)

func (b *bench) measureOnce(ctx context.Context, p path) (sample, error) {
	if p.enter != 0 {
		if err := b.enterBy(ctx, p.to, p.enter); err != nil {
			return sample{}, err
		}
	}
	if _, err := b.send(ctx, p, warmRate, warmTime); err != nil {
		return sample{}, fmt.Errorf("warm up: %w", err)
	}
	return b.measure(ctx, p)
}

// send sends to a path at a rate, 0 for unlimited, with the highest priority, because other processes would
// evict cache lines.
func (b *bench) send(ctx context.Context, p path, rate int, duration time.Duration) (harness.Flood, error) {
	var flood harness.Flood
	raw, err := b.cluster.Exec(ctx, "client", "nice", "-n", "-20", filepath.Join(b.cluster.Root(), "bin", "echo"), "flood", "--kind", "udp",
		"--to", netip.AddrPortFrom(p.to, port).String(), "--from", source.String(), "--flows", strconv.Itoa(b.options.Flows),
		"--rate", strconv.Itoa(rate), "--duration", duration.String())
	if err != nil {
		return flood, err
	}
	return flood, json.Unmarshal(raw, &flood)
}

// measure sends as fast as one thread can. On veths the kernel processes a packet up to the pod's socket
// within the sending system call. The thread's CPU time therefore includes all hosts on the path, except
// for the work of ksoftirqd.
func (b *bench) measure(ctx context.Context, p path) (sample, error) {
	before, err := b.count(ctx)
	if err != nil {
		return sample{}, err
	}
	flood, err := b.send(ctx, p, 0, b.options.Duration)
	if err != nil {
		return sample{}, err
	}
	after, err := b.count(ctx)
	if err != nil {
		return sample{}, err
	}
	arrived := float64(after.delivered - before.delivered)
	if p.enter == 0 {
		arrived = float64(flood.Packets)
	}
	if arrived == 0 {
		return sample{}, errors.New("no packet arrived at the pod")
	}
	return sample{
		sent:    float64(flood.Packets) / flood.Seconds,
		arrived: arrived / flood.Seconds,
		cost:    (flood.CPUSeconds*float64(time.Second) + float64(after.softirq-before.softirq)) / arrived,
	}, nil
}

type counts struct {
	delivered uint64
	// softirq is the CPU time of ksoftirqd.
	softirq time.Duration
}

func (b *bench) count(ctx context.Context) (counts, error) {
	raw, err := b.cluster.Exec(ctx, fmt.Sprintf("node%d", sinkNode), "ip", "-s", "-j", "link", "show", "dev", b.device)
	if err != nil {
		return counts{}, err
	}
	var links []struct {
		Stats64 struct {
			TX struct {
				Packets uint64 `json:"packets"`
			} `json:"tx"`
		} `json:"stats64"`
	}
	if err := json.Unmarshal(raw, &links); err != nil || len(links) != 1 {
		return counts{}, fmt.Errorf("read the counters of %s: %w: %q", b.device, err, raw)
	}
	softirq, err := spent(b.threads)
	return counts{delivered: links[0].Stats64.TX.Packets, softirq: softirq}, err
}

// middle is the median over the rounds, with the lower and upper quartiles.
type middle struct {
	median, low, high float64
}

func middleOf(numbers []float64) middle {
	sorted := slices.Sorted(slices.Values(numbers))
	last := len(sorted) - 1
	return middle{median: sorted[last/2], low: sorted[last/4], high: sorted[last-last/4]}
}

func (r result) middle(number func(sample) float64) middle {
	var all []float64
	for _, s := range r.samples {
		all = append(all, number(s))
	}
	return middleOf(all)
}

// inNodes returns the nodes' CPU time per packet of each round: without the sender's and router's in the
// same round.
func (r result) inNodes(base result) []float64 {
	var all []float64
	for i, s := range r.samples {
		all = append(all, s.cost-base.samples[i].cost)
	}
	return all
}
