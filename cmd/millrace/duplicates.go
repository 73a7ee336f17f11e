// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

func duplicatesCommand(env environment, config *cluster.Config) *cobra.Command {
	var nodes []string
	var output string
	command := &cobra.Command{
		Use:   "duplicates ADDRESS...",
		Short: "Ask which hosts on the nodes' networks have addresses",
		Long: "Ask now which hosts on the networks of the nodes' uplinks have addresses, by ARP and Neighbor Discovery.\n" +
			"The addresses need not be VIPs: ask before a pool gets them.",
		Example: "  millrace duplicates 203.0.113.7",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			asJSON, err := parseJSON(output)
			if err != nil {
				return err
			}
			for _, text := range args {
				if _, err := netip.ParseAddr(text); err != nil {
					return err
				}
			}
			answers, err := askHosts(command.Context(), env, *config, nodes, args)
			if err != nil {
				return err
			}
			return render.Hosts(env.stdout, answers, args, render.Options{Format: jsonFormat(asJSON), Width: env.width})
		},
	}
	nodesFlag(command, config, &nodes)
	jsonFlag(command, &output, "output `format`: json")
	command.ValidArgsFunction = complete(config, addresses)
	return command
}

func jsonFormat(asJSON bool) render.Format {
	if asJSON {
		return render.JSON
	}
	return render.Text
}

// askHosts has the agents of all nodes, or of some, ask. Those that do not answer are told.
func askHosts(ctx context.Context, env environment, config cluster.Config, nodes, addresses []string) ([]consoleapi.Hosts, error) {
	var found agents
	var err error
	if env.agents != nil {
		found, err = env.agents(config, nil)
	} else {
		found, err = cluster.FindAgents(ctx, config)
	}
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		nodes = found.Nodes()
	}
	limit := config.Timeout
	if limit == 0 {
		limit = time.Minute
	}
	round := console.Round{Runner: found, Limit: limit, Stop: cluster.ErrForbidden}
	answers := round.Ask(ctx, nodes, append([]string{"duplicates"}, addresses...))
	var told []consoleapi.Hosts
	for _, node := range slices.SortedFunc(slices.Values(nodes), report.CompareNames) {
		switch answer := answers[node]; {
		case errors.Is(answer.Err, cluster.ErrForbidden):
			return nil, answer.Err
		case answer.Err != nil:
			fmt.Fprintf(env.stderr, "millrace: %s: %v\n", node, answer.Err)
		case answer.Line.Hosts == nil:
			fmt.Fprintf(env.stderr, "millrace: %s: it may be of another version\n", node)
		default:
			told = append(told, *answer.Line.Hosts)
		}
	}
	if len(told) == 0 && ctx.Err() == nil {
		return nil, errNoAgent
	}
	return told, ctx.Err()
}
