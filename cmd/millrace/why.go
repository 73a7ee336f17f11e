// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
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
}

func whyCommand(env environment, config *cluster.Config) *cobra.Command {
	asked := why{env: env, config: config}
	var output string
	command := &cobra.Command{
		Use:   "why SERVICE",
		Short: "Show the history of a Service around a time",
		Long: "Show the history of a Service around a time: dropped packets, changes of endpoints and announcements, BGP and\n" +
			"BFD sessions, other nodes, and Events of the API server. Agents keep the history for at least a day, until\n" +
			"their node reboots. The API server keeps Events for an hour.",
		Example: "  millrace why web --at 03:12\n  millrace why default/web --at 2026-11-26T03:12:00Z --around 30m",
		Args:    cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) (err error) {
			if asked.format, err = parseFormat(output); err != nil {
				return err
			}
			return asked.run(command.Context(), args[0], time.Now())
		},
	}
	flags := command.Flags()
	flags.StringVarP(&asked.namespace, "namespace", "n", "", "`namespace` of the Service (default: the context's)")
	mustComplete(command, "namespace", complete(config, namespaces))
	nodesFlag(command, config, &asked.nodes)
	flags.StringVar(&asked.at, "at", "now", "the `time`: 03:12 or 03:12:30 (its latest occurrence in the local zone), RFC 3339, or now")
	flags.DurationVar(&asked.around, "around", 5*time.Minute, "show this duration before and after the time")
	command.Flags().StringVarP(&output, "output", "o", "", "output `format`: wide, json or yaml")
	mustComplete(command, "output", fixed(formats()...))
	command.ValidArgsFunction = complete(config, addressesAndServices(&asked.namespace))
	return command
}

func (w *why) run(ctx context.Context, service string, now time.Time) error {
	told, err := w.tell(ctx, service, now)
	if err != nil {
		return err
	}
	return render.Timeline(w.env.stdout, told, render.Options{Format: w.format, Width: w.env.width})
}

// tell writes failures of single sources to stderr.
func (w *why) tell(ctx context.Context, service string, now time.Time) (render.Why, error) {
	at, err := timeline.Moment(w.at, now)
	if err != nil {
		return render.Why{}, fmt.Errorf("--at: %w", err)
	}
	if w.around <= 0 {
		return render.Why{}, fmt.Errorf("--around is %s, must be more than 0", w.around)
	}
	namespace, name, err := w.named(service)
	if err != nil {
		return render.Why{}, err
	}
	told := render.Why{Service: namespace + "/" + name, At: at, From: at.Add(-w.around), To: at.Add(w.around)}
	asked := agentRequest[consoleapi.History]{
		request: []string{
			"history", "--service=" + told.Service,
			"--from=" + told.From.UTC().Format(time.RFC3339Nano), "--to=" + told.To.UTC().Format(time.RFC3339Nano),
		},
		of: func(line *consoleapi.Line) *consoleapi.History { return line.History },
	}
	nodes, err := asked.ask(ctx, w.env, *w.config, w.nodes)
	if err != nil {
		return render.Why{}, err
	}
	for _, node := range nodes {
		told.Nodes = append(told.Nodes, node.Node)
		if node.Since.IsZero() || node.Since.After(told.From) {
			told.Late = append(told.Late, render.Late{Node: node.Node, Since: node.Since})
		}
		if node.Damaged > 0 {
			fmt.Fprintf(w.env.stderr, "millrace: %s: %d lines of the history are damaged\n", node.Node, node.Damaged)
		}
	}
	events, err := w.events(ctx, namespace, name, told)
	var missing *apierror.Missing
	if errors.As(err, &missing) {
		return render.Why{}, err
	}
	if err != nil {
		fmt.Fprintf(w.env.stderr, "millrace: the Events of the API server are missing: %v\n", err)
	}
	told.Lines = timeline.Join(nodes, events)
	return told, nil
}

// named splits namespace/name; by default the namespace is the flag's or the context's.
func (w *why) named(service string) (namespace, name string, err error) {
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
