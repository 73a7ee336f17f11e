// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"text/tabwriter"
	"time"
)

const columns = "sent/s\tarrived/s\tns/packet\tof them in %s\tpackets/s through %[1]s, for each processor\t\n"

// figures returns the columns of a result. base is the cost without nodes; nil for base itself.
func (r result) figures(base *result) string {
	sent, arrived := r.middle(func(s sample) float64 { return s.sent }), r.middle(func(s sample) float64 { return s.arrived })
	cost := r.middle(func(s sample) float64 { return s.cost })
	text := fmt.Sprintf("%.0f\t%.0f\t%.0f\t", sent.median, arrived.median, cost.median)
	if base == nil {
		return text + "-\t-\t\n"
	}
	nodes := middleOf(r.inNodes(*base))
	return text + fmt.Sprintf("%.0f ± %.0f\t%.0f\t\n", nodes.median, (nodes.high-nodes.low)/2, float64(time.Second)/nodes.median)
}

func times(base, proxy, ours result) middle {
	slow, fast := proxy.inNodes(base), ours.inNodes(base)
	var ratios []float64
	for round := range fast {
		ratios = append(ratios, slow[round]/fast[round])
	}
	return middleOf(ratios)
}

// print prints the results: first sender and router alone, then pairs of kube-proxy and Millrace.
func (b *bench) print(results []result) error {
	fmt.Fprintf(b.out, "\nUDP, 60-byte frames, %d flows, one thread that sends, median of %d rounds of %s; ± is half the way between the quartiles.\n\n",
		b.options.Flows, b.options.Rounds, b.options.Duration)
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "pod on\tpath\t"+columns, "the nodes")
	for i, r := range results {
		base := &results[0]
		if i == 0 {
			base = nil
		}
		fmt.Fprintf(w, "%s\t%s\t%s", where(r.enter), r.name, r.figures(base))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(b.out)
	for i := 1; i+1 < len(results); i += 2 {
		ratio := times(results[0], results[i], results[i+1])
		fmt.Fprintf(b.out, "pod on %s: %.2f times the packets per second of kube-proxy (%.2f to %.2f)\n",
			where(results[i].enter), ratio.median, ratio.low, ratio.high)
	}
	return nil
}

const (
	noNode = iota
	sentBack
	forwardProxy
	forwardOurs
)

// leastTimes is the required ratio to kube-proxy in packets per second.
const leastTimes = 3

var errSlow = errors.New("a node that only forwards is too slow beside kube-proxy")

// printForwarding prints the results of a forwarding node. With Options.Strict it fails if the node is too
// slow.
func (b *bench) printForwarding(results []result) error {
	fmt.Fprint(b.out, "\nA node that only forwards. XDP puts frames into its link and takes out what it sends: no sender's stack, no router, no switch.\n\n")
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "path\t"+columns, "the node")
	for i, r := range results {
		base := &results[noNode]
		if i == noNode {
			base = nil
		}
		fmt.Fprintf(w, "%s\t%s", r.name, r.figures(base))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	ratio := times(results[noNode], results[forwardProxy], results[forwardOurs])
	least := times(results[noNode], results[forwardProxy], results[sentBack])
	fmt.Fprintf(b.out, "\na node that only forwards: %.2f times the packets per second of kube-proxy (%.2f to %.2f); %.2f if it only sent frames back\n",
		ratio.median, ratio.low, ratio.high, least.median)
	if b.options.Strict && ratio.median < leastTimes {
		return fmt.Errorf("%w: %.2f times its packets per second, want %d at least", errSlow, ratio.median, leastTimes)
	}
	return nil
}

func where(enter int) string {
	switch enter {
	case 0:
		return "-"
	case sinkNode:
		return "the ingress node"
	default:
		return "another node"
	}
}
