// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/timeline"
)

type why struct {
	env       environment
	config    *cluster.Config
	namespace string
	nodes     []string
	at        string
	around    time.Duration
	format    render.Format
	all       bool
}

func whyCommand(env environment, config *cluster.Config) *cobra.Command {
	query := why{env: env, config: config}
	var output string
	command := &cobra.Command{
		Use:   "why SERVICE",
		Short: "Show the history of a Service around a time",
		Long: "Show why a Service failed around a time: a verdict, then its history: dropped packets, changes of endpoints and announcements, BGP and\n" +
			"BFD sessions, other nodes, and Events of the API server. Agents keep the history for at least a day, until\n" +
			"their node reboots. The API server keeps Events for an hour.",
		Example: "  millrace why web --at 03:12\n  millrace why default/web --at 2026-11-26T03:12:00Z --around 30m",
		Args:    cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) (err error) {
			if query.format, err = parseFormat(output); err != nil {
				return err
			}
			return query.run(command.Context(), args[0], time.Now())
		},
	}
	flags := command.Flags()
	flags.StringVarP(&query.namespace, "namespace", "n", "", "`namespace` of the Service (default: the context's)")
	registerCompletion(command, "namespace", complete(config, namespaces))
	nodesFlag(command, config, &query.nodes)
	flags.StringVar(&query.at, "at", "now", "the `time`: 03:12 or 03:12:30 (its latest occurrence in the local zone), RFC 3339, or now")
	flags.DurationVar(&query.around, "around", 5*time.Minute, "show this duration before and after the time")
	flags.BoolVar(&query.all, "all", false, "show all entries (default: the 15 that explain most)")
	command.Flags().StringVarP(&output, "output", "o", "", "output `format`: wide, json or yaml")
	registerCompletion(command, "output", fixed(formats()...))
	command.ValidArgsFunction = complete(config, addressesAndServices(&query.namespace))
	return command
}

func (w *why) run(ctx context.Context, service string, now time.Time) error {
	result, err := w.query(ctx, service, now)
	if err != nil {
		return err
	}
	return render.Timeline(w.env.stdout, result, render.Options{Format: w.format, Width: w.env.width})
}

// query writes failures of single sources to stderr.
func (w *why) query(ctx context.Context, service string, now time.Time) (render.Why, error) {
	result, of, err := w.period(service, now)
	if err != nil {
		return result, err
	}
	request := agentQuery[consoleapi.History]{
		command: []string{
			"history", "--service=" + result.Service,
			"--from=" + result.From.UTC().Format(time.RFC3339Nano), "--to=" + result.To.UTC().Format(time.RFC3339Nano),
		},
		extract: func(line *consoleapi.Line) *consoleapi.History { return line.History },
	}
	w.config.Scope = of.Namespace
	events, eventsErr := w.events(ctx, of.Namespace, of.Name, result)
	nodes, err := request.run(ctx, w.env, *w.config, w.nodes)
	var missing *apierror.Missing
	switch {
	case errors.As(eventsErr, &missing) && !hasEntries(nodes, result.Service):
		return render.Why{}, eventsErr
	case errors.Is(err, cluster.ErrForbidden) && errors.Is(eventsErr, cluster.ErrForbidden):
		return render.Why{}, eventsErr
	case errors.Is(err, cluster.ErrForbidden):
		result.Omitted = append(result.Omitted, "the history of the nodes, which Role millrace-tracer of namespace "+w.config.Namespace+" permits")
	case err != nil:
		return render.Why{}, err
	}
	w.addNodes(&result, nodes)
	if eventsErr != nil {
		fmt.Fprintf(w.env.stderr, "millrace: the Events of the API server are missing: %v\n", eventsErr)
	}
	result.Lines = timeline.Join(nodes, events)
	result.Verdict, result.All = w.conclude(ctx, &result, of, nodes, events), w.all
	return result, nil
}

// period parses the Service and the period of the command line.
func (w *why) period(service string, now time.Time) (render.Why, types.NamespacedName, error) {
	at, err := timeline.Moment(w.at, now)
	if err != nil {
		return render.Why{}, types.NamespacedName{}, fmt.Errorf("--at: %w", err)
	}
	if w.around <= 0 {
		return render.Why{}, types.NamespacedName{}, fmt.Errorf("--around is %s, must be more than 0", w.around)
	}
	namespace, name, err := w.parseService(service)
	of := types.NamespacedName{Namespace: namespace, Name: name}
	return render.Why{Service: of.String(), At: at, From: at.Add(-w.around), To: at.Add(w.around)}, of, err
}

// addNodes writes damaged histories to stderr.
func (w *why) addNodes(result *render.Why, nodes []consoleapi.History) {
	for _, node := range nodes {
		result.Nodes = append(result.Nodes, node.Node)
		if node.Since.IsZero() || node.Since.After(result.From) {
			result.Late = append(result.Late, render.Late{Node: node.Node, Since: node.Since})
		}
		if node.Damaged > 0 {
			fmt.Fprintf(w.env.stderr, "millrace: %s: %d lines of the history are damaged\n", node.Node, node.Damaged)
		}
	}
}

// conclude returns the present problem of the Service if the history has no failure.
func (w *why) conclude(
	ctx context.Context, result *render.Why, of types.NamespacedName, nodes []consoleapi.History, events []timeline.Event,
) timeline.Verdict {
	verdict := timeline.Conclude(nodes, events, result.To, func(at time.Time) string { return at.In(result.At.Location()).Format(time.TimeOnly) })
	if !verdict.From.IsZero() {
		return verdict
	}
	if len(result.Omitted) > 0 {
		verdict.Text = "no Event explains a failure"
	}
	if w.env.events == nil {
		verdict.Text = cmp.Or(w.currentProblem(ctx, of), verdict.Text)
	}
	return verdict
}

// currentProblem returns the present problem of a Service or its VIP, or "".
func (w *why) currentProblem(ctx context.Context, name types.NamespacedName) string {
	in, err := cluster.Read(ctx, *w.config)
	if err != nil {
		return ""
	}
	choice := report.Choice{Wanted: []string{name.String()}}
	if choice.Apply(in) != nil {
		return ""
	}
	in.Traffic = trafficLive(ctx, w.env, *w.config, name.Namespace)
	view := report.Build(in)
	for _, problem := range view.Unassigned {
		return "it has no VIP: " + problem.Reason + ": " + problem.Message
	}
	for i := range view.Problems {
		problem := &view.Problems[i]
		if problem.Kind == "VIP" && slices.ContainsFunc(view.VIPs, func(vip report.VIP) bool { return vip.Address == problem.Name }) {
			return problem.Reason + ": " + problem.Message
		}
	}
	return ""
}

// hasEntries reports whether nodes have entries about a Service, which may have been deleted.
func hasEntries(nodes []consoleapi.History, service string) bool {
	for _, node := range nodes {
		for i := range node.Entries {
			if slices.Contains(node.Entries[i].Services, service) {
				return true
			}
		}
	}
	return false
}

// parseService splits namespace/name; by default the namespace is the flag's or the context's.
func (w *why) parseService(service string) (namespace, name string, err error) {
	namespace, name, found := strings.Cut(service, "/")
	switch {
	case found && (namespace == "" || name == "" || strings.Contains(name, "/")):
		return "", "", fmt.Errorf("%q is not a Service: write NAME or NAMESPACE/NAME", service)
	case found:
		return namespace, name, nil
	case w.namespace != "":
		return w.namespace, service, nil
	}
	namespace, err = cluster.CurrentNamespace(*w.config)
	return namespace, service, err
}

func (w *why) events(ctx context.Context, namespace, name string, of render.Why) ([]timeline.Event, error) {
	if w.env.events != nil {
		return w.env.events(namespace, name)
	}
	return cluster.EventsOf(ctx, *w.config, cluster.EventQuery{Namespace: namespace, Service: name, From: of.From, To: of.To})
}
