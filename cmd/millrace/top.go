// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// leastInterval is the minimum of --interval.
const leastInterval = 500 * time.Millisecond

// clearScreen moves the cursor home and erases to the end of the screen (ECMA-48).
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
			liveErr := cluster.ErrNoLive
			// The aggregated API supports neither --node nor --interval.
			if len(nodes) == 0 && !command.Flags().Changed("interval") {
				if liveErr = watch.runLive(command.Context(), *config); liveErr == nil || errors.Is(liveErr, errShow) {
					return liveErr
				}
			}
			found, err := cluster.FindAgents(command.Context(), *config)
			if err != nil {
				return joinLiveError(err, liveErr)
			}
			if !errors.Is(liveErr, cluster.ErrNoLive) {
				fmt.Fprintf(env.stderr, "millrace: %v; querying the agents instead, for means over %s\n", liveErr, watch.interval)
			}
			return watch.run(command.Context(), found, defaultNodes(nodes, found))
		},
	}
	flags := command.Flags()
	nodesFlag(command, config, &nodes)
	namespaceFlag(command, config, &watch.namespace, "Services", complete(config, namespaces))
	vipFlag(command, config, &watch.vip, "only frontends of this `address`")
	flags.DurationVar(&watch.interval, "interval", 2*time.Second, "averaging `time` of a rate")
	flags.BoolVar(&watch.once, "once", false, "print one interval and exit")
	jsonFlag(command, &output, "output `format`: json, one object per line")
	return command
}

type topWatch struct {
	env       environment
	interval  time.Duration
	once      bool
	json      bool
	namespace string
	vip       netip.Addr

	// spans has the last two lines of each node whose stream is open.
	spans  map[string]report.Span
	failed int
}

func (w *topWatch) run(ctx context.Context, runner console.Runner, nodes []string) error {
	w.spans = map[string]report.Span{}
	if w.once {
		// A rate is the difference of two lines.
		runner = console.Bounded(runner, 2)
	}
	answers := console.Follow(ctx, runner, nodes, w.arguments())
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	for {
		select {
		case answer, more := <-answers:
			if !more {
				return w.end(ctx, len(nodes))
			}
			w.store(answer)
			continue
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

func (w *topWatch) arguments() []string {
	arguments := []string{"top", "--interval", w.interval.String()}
	if w.namespace != "" {
		arguments = append(arguments, "--namespace", w.namespace)
	}
	if w.vip.IsValid() {
		arguments = append(arguments, "--vip", w.vip.String())
	}
	return arguments
}

// end prints the rates with --once.
func (w *topWatch) end(ctx context.Context, nodes int) error {
	switch {
	case w.failed == nodes:
		return errAgentsFailed
	case w.once && ctx.Err() == nil:
		return w.show()
	default:
		return nil
	}
}

func (w *topWatch) store(answer console.Response) {
	done := w.once && w.spans[answer.Node].Before != nil
	if answer.Ended && !done {
		delete(w.spans, answer.Node)
	}
	if printed := done && errors.Is(answer.Err, console.ErrEnded); answer.Err != nil && !printed {
		w.failed++
		fmt.Fprintf(w.env.stderr, "millrace: %s: %v\n", answer.Node, answer.Err)
	}
	if counters := answer.Line.Counters; counters != nil {
		w.spans[answer.Node] = report.Span{Before: w.spans[answer.Node].After, After: counters}
	}
}

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
	spans := make([]report.Span, 0, len(w.spans))
	for _, span := range w.spans {
		spans = append(spans, span)
	}
	return w.showRates(report.RatesOf(spans))
}

func (w *topWatch) showRates(rates report.Rates) error {
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
