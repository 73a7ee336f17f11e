// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/usage"
)

// countersTimeout is the time to wait for the counters of all nodes before those of some are printed.
const countersTimeout = 3 * time.Second

// errAgentsFailed is returned when all agents failed; the causes have already been printed.
var errAgentsFailed = errors.New("no agent answered")

func dropsCommand(env environment, config *cluster.Config) *cobra.Command {
	watch := dropWatch{env: env}
	var nodes []string
	var output string
	var limit time.Duration
	command := &cobra.Command{
		Use:   "drops",
		Short: "Follow dropped packets with the reasons",
		Long: "Show the nodes' counters of dropped packets by reason, then follow samples of dropped packets until\n" +
			"interrupted. Each CPU of a node samples at most 16 packets per second and reason.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) (err error) {
			if watch.json, err = parseJSON(output); err != nil {
				return err
			}
			ctx := command.Context()
			if limit > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, limit)
				defer cancel()
			}
			found, err := cluster.FindAgents(ctx, *config)
			if err != nil {
				return err
			}
			return watch.run(ctx, found, defaultNodes(nodes, found))
		},
	}
	flags := command.Flags()
	nodesFlag(command, config, &nodes)
	namespaceFlag(command, config, &watch.namespace, "Services", complete(config, namespaces))
	flags.StringVar(&watch.reason, "reason", "", "only samples of this `reason`, such as no_endpoint")
	vipFlag(command, config, &watch.vip, "only samples of packets to this `address`")
	flags.DurationVar(&limit, "for", 0, "end after this `time` (default: when interrupted)")
	jsonFlag(command, &output, "output `format`: json, one object per line")
	return command
}

type addressFlag netip.Addr

func (f *addressFlag) Set(text string) error {
	address, err := usage.Address(text)
	*f = addressFlag(address)
	return err
}

func (f *addressFlag) String() string {
	if address := netip.Addr(*f); address.IsValid() {
		return address.String()
	}
	return ""
}

func (f *addressFlag) Type() string { return "address" }

func parseJSON(output string) (bool, error) {
	if output != "" && output != string(render.JSON) {
		return false, fmt.Errorf("--output=%s: must be json", output)
	}
	return output != "", nil
}

func defaultNodes(nodes []string, found *cluster.Agents) []string {
	if len(nodes) > 0 {
		return nodes
	}
	return found.Nodes()
}

type nodeLine struct {
	Node string `json:"node"`
	consoleapi.Line
}

// dropWatch follows the drops of many nodes.
type dropWatch struct {
	env       environment
	reason    string
	namespace string
	vip       netip.Addr
	json      bool

	// isHeaderPrinted is true once the counters have been printed; samples are held in pending until then.
	isHeaderPrinted bool
	counters        []consoleapi.Drops
	pending         []string
	reasons         map[string]bool
}

func (w *dropWatch) run(ctx context.Context, runner console.Runner, nodes []string) error {
	responses := console.Follow(ctx, runner, nodes, []string{"drops", "--follow"})
	late := time.NewTimer(countersTimeout)
	defer late.Stop()
	silent, failed := len(nodes), 0
	for {
		select {
		case response, more := <-responses:
			if !more {
				return w.finish(failed == len(nodes))
			}
			if response.Err != nil {
				failed++
				fmt.Fprintf(w.env.stderr, "millrace: %s: %v\n", response.Node, response.Err)
			}
			if response.Line.Drops != nil || response.Err != nil && !errors.Is(response.Err, console.ErrEnded) {
				silent--
			}
			err := w.store(response)
			if err == nil && (w.isHeaderPrinted || silent <= 0) {
				err = w.flush()
			}
			if err != nil {
				return err
			}
		case <-late.C:
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
}

func (w *dropWatch) finish(allFailed bool) error {
	if allFailed {
		return errAgentsFailed
	}
	return w.flush()
}

// store stores a line of an agent for flush to print.
func (w *dropWatch) store(response console.Response) error {
	if !w.matches(response.Line) {
		return nil
	}
	if drops := response.Line.Drops; drops != nil {
		if w.reasons == nil {
			w.reasons = map[string]bool{}
		}
		for reason := range drops.Reasons {
			w.reasons[reason] = true
		}
	}
	if w.json {
		return json.NewEncoder(w.env.stdout).Encode(nodeLine{response.Node, response.Line})
	}
	line := response.Line
	switch {
	case line.Drops != nil:
		w.counters = append(w.counters, *line.Drops)
	case line.Drop != nil:
		w.pending = append(w.pending, render.Drop(line.Drop, w.env.width))
	case line.Missed > 0:
		w.pending = append(w.pending, fmt.Sprintf("(%d samples of %s were skipped because they arrived too fast)", line.Missed, response.Node))
	}
	return nil
}

func (w *dropWatch) matches(line consoleapi.Line) bool {
	switch {
	case line.Drop != nil:
		return (w.reason == "" || w.reason == line.Drop.Reason) &&
			(!w.vip.IsValid() || w.vip == line.Drop.Destination.Addr()) &&
			isInNamespace(line.Drop.Service, w.namespace)
	default:
		return line.Drops != nil || line.Missed > 0
	}
}

// flush prints the counters once, then the lines that wait.
func (w *dropWatch) flush() error {
	if w.reason != "" && len(w.reasons) > 0 && !w.reasons[w.reason] {
		return fmt.Errorf("--reason=%s: must be one of %s", w.reason, strings.Join(slices.Sorted(maps.Keys(w.reasons)), ", "))
	}
	if w.json {
		return nil
	}
	if !w.isHeaderPrinted && len(w.counters) > 0 {
		w.isHeaderPrinted = true
		lines := append(render.DropCounters(w.counters, w.env.width), "", render.DropHeading(w.env.width))
		w.pending = append(lines, w.pending...)
	}
	if len(w.pending) == 0 {
		return nil
	}
	_, err := io.WriteString(w.env.stdout, strings.Join(w.pending, "\n")+"\n")
	w.pending = nil
	return err
}
