// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

type agents interface {
	console.Runner
	Nodes() []string
}

func runningAgents(config cluster.Config, pods []corev1.Pod) (agents, error) {
	return cluster.AgentsOf(config, pods)
}

type list struct {
	env    environment
	config *cluster.Config
	output string
	watch  bool
	more   []render.Format
	// printed is the last output; --watch skips output that is equal.
	printed string

	// includesRemarks is true if the output contains the remarks in every format.
	includesRemarks bool
	// needsAgents is true if the report needs the announcements, from the aggregated API or agents.
	needsAgents bool
	// selects removes objects from the input; nil: keeps all.
	selects func(*report.Input) error
	// addresses returns the VIPs to query announcements of; nil: all.
	addresses func(*report.Input) []string
	write     func(io.Writer, *report.View, render.Options) error
}

func (l *list) flags(command *cobra.Command) {
	allowed := formats()
	for _, one := range l.more {
		allowed = append(allowed, string(one))
	}
	command.Flags().StringVarP(&l.output, "output", "o", "", "output `format`: "+strings.Join(allowed, ", ")+" or jsonpath=TEMPLATE")
	command.Flags().BoolVarP(&l.watch, "watch", "w", false, "print again after each change, until interrupted")
	registerCompletion(command, "output", fixed(allowed...))
}

func (l *list) run(ctx context.Context) error {
	format, err := parseFormat(l.output, l.more...)
	if err != nil {
		return err
	}
	options := render.Options{Format: format, Width: l.env.width, Colour: l.env.colour}
	if l.watch {
		return cluster.Watch(ctx, *l.config, l.pause(), l.needsAgents, func(in *report.Input) error { return l.show(ctx, in, options) })
	}
	in, err := cluster.Read(ctx, *l.config)
	if err != nil {
		return err
	}
	return l.show(ctx, in, options)
}

func (l *list) pause() cluster.Pause {
	if l.needsAgents {
		return console.PauseAfter
	}
	return cluster.NoPause
}

func (l *list) show(ctx context.Context, in *report.Input, options render.Options) error {
	if l.selects != nil {
		if err := l.selects(in); err != nil {
			return err
		}
	}
	if l.needsAgents {
		if err := l.readAnnouncements(ctx, in); err != nil {
			return err
		}
	}
	view := report.Build(in)
	var text bytes.Buffer
	if err := l.write(&text, view, options); err != nil {
		_, _ = l.env.stdout.Write(text.Bytes())
		return err
	}
	if l.watch && text.String() == l.printed {
		return nil
	}
	if l.structured() && !l.includesRemarks {
		for _, remark := range render.Remarks(view) {
			fmt.Fprintf(l.env.stderr, "millrace: %s\n", remark)
		}
	}
	repeated := l.printed != ""
	l.printed = text.String()
	_, err := io.WriteString(l.env.stdout, l.frame(l.printed, repeated))
	return err
}

func (l *list) structured() bool {
	return render.Format(l.output).Structured() || l.output == string(render.Name)
}

// frame makes text replace the previous output of --watch on a terminal, else follow it.
func (l *list) frame(text string, repeated bool) string {
	switch {
	case !l.watch:
		return text
	case l.output == string(render.YAML) && repeated:
		return "---\n" + text
	case l.structured():
		return text
	case l.env.height > 0:
		return clearScreen + render.Fit(text, l.env.height)
	case repeated:
		return "\n" + text
	default:
		return text
	}
}

// readAnnouncements adds announced VIPs from the aggregated API or else from the agents.
func (l *list) readAnnouncements(ctx context.Context, in *report.Input) error {
	find := l.env.agents
	if find == nil {
		find = runningAgents
	}
	found, err := find(*l.config, in.Pods)
	if err != nil {
		return err
	}
	var named []string
	if l.addresses != nil {
		named = l.addresses(in)
	}
	announcements, liveErr := announcedLive(ctx, l.env, *l.config, named, found.Nodes())
	if liveErr == nil {
		in.Agents = announcements
		return nil
	}
	if in.Sole != "" || slices.Contains(in.Omitted, "Pods") {
		in.Traffic = trafficLive(ctx, l.env, *l.config, in.Sole)
		return ctx.Err()
	}
	limit := l.config.Timeout
	if limit == 0 {
		limit = time.Minute
	}
	batch := console.Batch{Runner: found, Limit: limit, Stop: cluster.ErrForbidden}
	in.Agents = sortResponses(batch.Query(ctx, found.Nodes(), append([]string{"vips"}, named...)))
	in.Agents.LiveForbidden = errors.Is(liveErr, cluster.ErrForbidden)
	return ctx.Err()
}

func sortResponses(responses map[string]console.Response) report.Agents {
	sorted := report.Agents{Responses: map[string]*consoleapi.VIPs{}, Failures: map[string]string{}}
	for node, response := range responses {
		switch {
		case errors.Is(response.Err, cluster.ErrForbidden):
			sorted.Forbidden = true
		case response.Err != nil:
			sorted.Failures[node] = response.Err.Error()
		case response.Line.VIPs == nil:
			sorted.Failures[node] = "it may have another version"
		default:
			sorted.Responses[node] = response.Line.VIPs
		}
	}
	return sorted
}

func statusCommand(env environment, config *cluster.Config) *cobra.Command {
	var exitCode bool
	var namespace string
	l := &list{env: env, config: config, needsAgents: true, includesRemarks: true}
	l.write = func(out io.Writer, view *report.View, options render.Options) error {
		if err := render.Status(out, view, options); err != nil {
			return err
		}
		if exitCode && len(view.Problems) > 0 {
			return errProblems
		}
		return nil
	}
	command := &cobra.Command{
		Use:   "status",
		Short: "Show VIPs, nodes and problems on one screen",
		Long: "Show VIPs, nodes and problems on one screen.\n\n" +
			"The exit code is 1 if the cluster cannot be read, with --exit-code 2 if there are problems, and otherwise 0.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if namespace != "" {
				l.selects = report.Choice{Namespace: namespace}.Only
			}
			return l.run(command.Context())
		},
	}
	l.flags(command)
	namespaceFlag(command, config, &namespace, "VIPs and Services", complete(config, namespaces))
	command.Flags().BoolVar(&exitCode, "exit-code", false, "exit with code 2 if there are problems")
	command.MarkFlagsMutuallyExclusive("exit-code", "watch")
	return command
}

func nodesCommand(env environment, config *cluster.Config) *cobra.Command {
	l := &list{env: env, config: config, write: render.Nodes, more: []render.Format{render.Name}}
	var selector string
	command := &cobra.Command{
		Use:   "nodes",
		Short: "Show the nodes, their agents and BGP sessions",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			chosen, err := parseSelector(selector)
			if err != nil {
				return err
			}
			if !chosen.Empty() {
				l.selects = func(in *report.Input) error {
					names, err := cluster.SelectNodes(command.Context(), *config, chosen)
					in.LBNodes = slices.DeleteFunc(in.LBNodes, func(node millracev1beta1.LBNode) bool { return !names[node.Name] })
					return err
				}
			}
			return l.run(command.Context())
		},
	}
	l.flags(command)
	selectorFlag(command, &selector, "only Nodes that match this label `selector`")
	return command
}

func selectorFlag(command *cobra.Command, selector *string, usage string) {
	command.Flags().StringVarP(selector, "selector", "l", "", usage)
}

func parseSelector(text string) (labels.Selector, error) {
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("--selector=%s: %w", text, err)
	}
	return selector, nil
}

// maxAddresses limits addresses in a request; with more VIPs, agents return all.
const maxAddresses = 256

func vipsCommand(env environment, config *cluster.Config) *cobra.Command {
	l := &list{env: env, config: config, needsAgents: true, write: render.VIPs, more: []render.Format{render.Name}}
	var namespace, selector string
	var all bool
	command := &cobra.Command{
		Use:   "vips [ADDRESS | SERVICE]...",
		Short: "Show the VIPs, their Services and the nodes that announce them",
		Long: "Show the VIPs, their Services and the nodes that announce them, as reported by the agents.\n" +
			"With addresses or Services, show their VIPs in detail.\n\n" +
			"A SERVICE is NAMESPACE/NAME, or NAME in the namespace of -n or of the context; with -A in any namespace.",
		Example: "  millrace vips\n  millrace vips 203.0.113.1\n  millrace vips -n shop\n  millrace vips shop/web",
		RunE: func(command *cobra.Command, args []string) error {
			chosen, err := parseSelector(selector)
			if err != nil {
				return err
			}
			choice := report.Choice{Namespace: namespace, Wanted: args, Services: chosen}
			if all {
				choice.Namespace = ""
			}
			if len(args) > 0 {
				if of, _, full := strings.Cut(args[0], "/"); full && config.Scope == "" {
					config.Scope = of
				}
				l.write = render.VIPDetails
				if err := setDefaultNamespace(&choice, all, *config); err != nil {
					return err
				}
			}
			if len(args) > 0 || choice.Namespace != "" || !chosen.Empty() {
				l.selects = choice.Apply
				l.addresses = namedAddresses
			}
			return l.run(command.Context())
		},
	}
	l.flags(command)
	namespaceFlag(command, config, &namespace, "Services", complete(config, namespaces))
	selectorFlag(command, &selector, "only VIPs of Services that match this label `selector`")
	command.Flags().BoolVarP(&all, "all-namespaces", "A", false, "Services of all namespaces")
	command.ValidArgsFunction = complete(config, addressesAndServices(&namespace))
	return command
}

// setDefaultNamespace sets the default namespace of Services to the context's, unless -n or -A is given.
func setDefaultNamespace(choice *report.Choice, all bool, config cluster.Config) error {
	if all || choice.Namespace != "" {
		return nil
	}
	for _, wanted := range choice.Wanted {
		if _, err := netip.ParseAddr(wanted); err == nil || strings.Contains(wanted, "/") {
			continue
		}
		namespace, err := cluster.CurrentNamespace(config)
		if err != nil {
			return err
		}
		choice.Default = namespace
		return nil
	}
	return nil
}

// namedAddresses returns the input's VIPs, or nil for more than maxAddresses.
func namedAddresses(in *report.Input) []string {
	if len(in.VIPs) > maxAddresses {
		return nil
	}
	var named []string
	for _, vip := range in.VIPs {
		named = append(named, vip.Spec.Address)
	}
	return named
}
