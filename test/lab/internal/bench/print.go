// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"text/tabwriter"
	"time"
)

// print writes the table of the results, the first of which is that of sender and router,
// the others pairs of kube-proxy and Millrace.
func (b *bench) print(results []result) error {
	base := results[0]
	fmt.Fprintf(b.out, "\nUDP, 60-byte frames, %d flows, one thread that sends, median of %d rounds of %s; ± is half the way between the quartiles.\n\n",
		b.options.Flows, b.options.Rounds, b.options.Duration)
	w := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "pod on\tpath\tsent/s\tarrived/s\tns/packet\tof them in the nodes\tpackets/s through the nodes, for each processor\t")
	for i, r := range results {
		sent, arrived := r.middle(func(s sample) float64 { return s.sent }), r.middle(func(s sample) float64 { return s.arrived })
		cost := r.middle(func(s sample) float64 { return s.cost })
		fmt.Fprintf(w, "%s\t%s\t%.0f\t%.0f\t%.0f\t", where(r.enter), r.name, sent.median, arrived.median, cost.median)
		if i == 0 {
			fmt.Fprintln(w, "-\t-\t")
			continue
		}
		nodes := middleOf(r.inNodes(base))
		fmt.Fprintf(w, "%.0f ± %.0f\t%.0f\t\n", nodes.median, (nodes.high-nodes.low)/2, float64(time.Second)/nodes.median)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(b.out)
	for i := 1; i+1 < len(results); i += 2 {
		proxy, ours := results[i].inNodes(base), results[i+1].inNodes(base)
		var ratios []float64
		for round := range ours {
			ratios = append(ratios, proxy[round]/ours[round])
		}
		ratio := middleOf(ratios)
		fmt.Fprintf(b.out, "pod on %s: %.2f times the packets per second of kube-proxy (%.2f to %.2f)\n",
			where(results[i].enter), ratio.median, ratio.low, ratio.high)
	}
	fmt.Fprintln(b.out, "On veth the driver does not send what XDP encapsulates, so the kernel's stack does: hardware sends it by XDP_TX.")
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
