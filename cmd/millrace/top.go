// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/agents"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// leastInterval is the shortest at which agents are asked.
const leastInterval = 500 * time.Millisecond

// clearScreen moves to the upper left corner and erases what is below (ECMA-48).
const clearScreen = "\x1b[H\x1b[J"

func topCommand(env environment, config *cluster.Config) *cobra.Command {
	watch := topWatch{env: env}
	var nodes []string
	var output string
	command := &cobra.Command{
		Use:   "top",
		Short: "Show live rates of each VIP, summed over the nodes",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) (err error) {
			if watch.json, err = parseJSON(output); err != nil {
				return err
			}
			if watch.interval < leastInterval {
				return fmt.Errorf("--interval=%s: must be at least %s", watch.interval, leastInterval)
			}
			found, err := cluster.FindAgents(command.Context(), *config)
			if err != nil {
				return err
			}
			return watch.run(command.Context(), found, orAll(nodes, found))
		},
	}
	flags := command.Flags()
	flags.StringSliceVar(&nodes, "node", nil, "only these `nodes` (default all)")
	flags.DurationVar(&watch.interval, "interval", 2*time.Second, "`time` that a rate is taken over")
	flags.BoolVar(&watch.once, "once", false, "show one interval and end")
	flags.StringVarP(&output, "output", "o", "", "output `format`: json, a line each")
	return command
}

// topWatch follows the counters of many nodes.
type topWatch struct {
	env      environment
	interval time.Duration
	once     bool
	json     bool

	// spans are the last two lines of each node that still tells.
	spans map[string]report.Span
	// live is how many do, failed how many do not though nobody asked them to end.
	live, failed int
	shown        bool
}

func (w *topWatch) run(ctx context.Context, runner agents.Runner, nodes []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.spans = map[string]report.Span{}
	answers := agents.Follow(ctx, runner, nodes, []string{"top", "--interval", w.interval.String()})
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	w.live = len(nodes)
	for {
		select {
		case answer, more := <-answers:
			switch {
			case !more && w.failed == len(nodes):
				return errNoAgent
			case !more:
				return nil
			}
			w.take(answer)
			if !w.once || w.shown || w.live == 0 || w.complete() < w.live {
				continue
			}
			// The nodes that end now were asked to.
			cancel()
		case <-ticker.C:
			if w.once || w.complete() == 0 {
				continue
			}
		}
		if err := w.show(); err != nil {
			return err
		}
	}
}

// take keeps what a node tells.
func (w *topWatch) take(answer agents.Answer) {
	if answer.Ended {
		w.live--
		delete(w.spans, answer.Node)
	}
	if answer.Err != nil {
		w.failed++
		fmt.Fprintf(w.env.stderr, "millrace: %s: %v\n", answer.Node, answer.Err)
	}
	if counters := answer.Line.Counters; counters != nil {
		w.spans[answer.Node] = report.Span{Before: w.spans[answer.Node].After, After: counters}
	}
}

// complete is how many nodes have told twice.
func (w *topWatch) complete() int {
	n := 0
	for _, span := range w.spans {
		if span.Before != nil {
			n++
		}
	}
	return n
}

func (w *topWatch) show() error {
	w.shown = true
	spans := make([]report.Span, 0, len(w.spans))
	for _, span := range w.spans {
		spans = append(spans, span)
	}
	rates := report.RatesOf(spans)
	if w.json {
		return json.NewEncoder(w.env.stdout).Encode(rates)
	}
	text := strings.Join(render.Rates(rates, w.env.width, w.env.height), "\n") + "\n"
	switch {
	case w.once:
	case w.env.height > 0:
		text = clearScreen + strings.TrimSuffix(text, "\n")
	default:
		text += "\n"
	}
	_, err := io.WriteString(w.env.stdout, text)
	return err
}
