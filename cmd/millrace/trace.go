// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/usage"
)

const (
	// maxHops exceeds the longest path: an override and, in each of eight zones, a primary, its
	// former owners and the way back.
	maxHops = 48
	// traceTime is the time limit of one node.
	traceTime = 30 * time.Second
)

// errDropped is returned by a trace that ends with a drop; the trace has already been printed.
var errDropped = errors.New("the packet is dropped")

func traceCommand(env environment, config *cluster.Config) *cobra.Command {
	var node, proto, output string
	var syn, ack bool
	var options urlFlags
	command := &cobra.Command{
		Use:   "trace SOURCE:PORT VIP:PORT | trace URL",
		Short: "Trace a packet or a request, node by node",
		Long: "Run the nodes' programs on a synthetic packet and show each step, from the ingress node to the pod.\n" +
			"No packet is sent, recorded or counted. Write IPv6 sockets as [2001:db8::1]:80.\n\n" +
			"With a URL, also show the proxy's listener, route and backends. The VIP is the one that serves the\n" +
			"URL's host; DNS is not used.\n\n" +
			"The exit code is 3 if the packet is dropped, or the request is rejected.",
		Example: "  millrace trace 198.51.100.130:40000 203.0.113.1:80\n" +
			"  millrace trace '[2001:db8::1]:40000' '[2001:db8:cafe::1]:53' --proto udp --node node2\n" +
			"  millrace trace https://shop.example.com/cart --from 203.0.113.7",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: argument(1, complete(config, sockets)),
		RunE: func(command *cobra.Command, args []string) error {
			asJSON, err := parseJSON(output)
			if err != nil {
				return err
			}
			options.given = command.Flags().Changed
			if len(args) == 1 {
				if ack || !strings.EqualFold(proto, "tcp") {
					return errors.New("a URL is traced from the first packet of a TCP connection: remove --ack and --proto")
				}
				return traceURL(command.Context(), env, *config, urlTrace{url: args[0], flags: options, node: node, json: asJSON})
			}
			if err := options.unused(); err != nil {
				return err
			}
			first, err := traceArguments(args, proto, ack)
			if err != nil {
				return err
			}
			traced, err := tracePacket(command.Context(), *config, node, first)
			if err := errors.Join(printPath(env.stdout, traced, asJSON), err); err != nil {
				return err
			}
			return traced.end()
		},
	}
	flags := command.Flags()
	flags.StringVar(&node, "node", "", "ingress `node` that receives the packet from a router (default: the first one)")
	flags.StringVar(&proto, "proto", "tcp", "`protocol`: tcp, udp or sctp")
	flags.BoolVar(&syn, "syn", false, "first packet of a connection (default)")
	flags.BoolVar(&ack, "ack", false, "packet of an established connection")
	options.add(flags)
	jsonFlag(command, &output, "output `format`: json")
	registerCompletion(command, "node", complete(config, cluster.Nodes))
	registerCompletion(command, "vip", complete(config, addresses))
	registerCompletion(command, "proto", fixed("tcp", "udp", "sctp"))
	command.MarkFlagsMutuallyExclusive("syn", "ack")
	return command
}

// tracePacket starts by default at the first of the agents' nodes.
func tracePacket(ctx context.Context, config cluster.Config, node string, first []string) (tracePath, error) {
	found, err := cluster.FindAgents(ctx, config)
	if err != nil {
		return tracePath{}, err
	}
	if node == "" {
		node = found.Nodes()[0]
	}
	return follow(ctx, found, node, first)
}

func traceArguments(args []string, proto string, ack bool) ([]string, error) {
	if !slices.Contains([]string{"tcp", "udp", "sctp"}, strings.ToLower(proto)) {
		return nil, fmt.Errorf("--proto=%s: must be tcp, udp or sctp", proto)
	}
	var families []bool
	for _, text := range args {
		at, err := usage.Socket(text)
		if err != nil {
			return nil, err
		}
		families = append(families, at.Addr().Unmap().Is4())
	}
	if families[0] != families[1] {
		return nil, fmt.Errorf("from %s to %s: both must be IPv4 or both IPv6", args[0], args[1])
	}
	command := []string{"trace", args[0], args[1], "--proto", strings.ToLower(proto)}
	if ack {
		command = append(command, "--midstream")
	}
	return command, nil
}

type tracePath struct {
	Hops []*consoleapi.Trace `json:"hops"`
	Pod  string              `json:"pod,omitempty"`
	// Request is the result for the request of the packet, if a URL is traced.
	Request *routing.Result `json:"request,omitempty"`
}

// end returns errDropped if a node drops the packet, or the proxy rejects the request.
func (w tracePath) end() error {
	if w.Request != nil && w.Request.Refused() {
		return errDropped
	}
	if last := len(w.Hops) - 1; last >= 0 && w.Hops[last].Verdict == consoleapi.Dropped {
		return errDropped
	}
	return nil
}

type tracer interface {
	console.Runner
	PodAt(ctx context.Context, service, address string) (string, error)
}

// follow returns an error and the hops so far if a hop fails.
func follow(ctx context.Context, runner tracer, node string, command []string) (tracePath, error) {
	var w tracePath
	for range maxHops {
		hop, err := traceOn(ctx, runner, node, command)
		if err != nil {
			return w, fmt.Errorf("%s: %w", node, err)
		}
		w.Hops = append(w.Hops, hop)
		if hop.Verdict == consoleapi.Delivered && hop.Service != "" {
			w.Pod, err = runner.PodAt(ctx, hop.Service, hop.Endpoint.Addr().String())
			return w, err
		}
		if hop.Verdict != consoleapi.Sent {
			return w, nil
		}
		node = hop.NextNode
		command = []string{"trace", "--packet", base64.StdEncoding.EncodeToString(hop.Packet)}
	}
	return w, fmt.Errorf("the packet was not delivered after %d nodes; please report this bug", maxHops)
}

func traceOn(ctx context.Context, runner console.Runner, node string, command []string) (*consoleapi.Trace, error) {
	ctx, cancel := context.WithTimeout(ctx, traceTime)
	defer cancel()
	line, err := console.Query(ctx, runner, node, command)
	if err != nil {
		return nil, err
	}
	if line.Trace == nil {
		return nil, errors.New("the agent did not return a trace: it may have another version")
	}
	return line.Trace, nil
}

func printPath(out io.Writer, w tracePath, asJSON bool) error {
	if len(w.Hops) == 0 && w.Request == nil {
		return nil
	}
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(w)
	}
	var lines []string
	for _, hop := range w.Hops {
		lines = append(lines, render.Hop(hop, w.Pod)...)
	}
	if w.Request != nil {
		lines = append(lines, render.Answer(w.Request, w.Pod)...)
	}
	_, err := io.WriteString(out, strings.Join(lines, "\n")+"\n")
	return err
}
