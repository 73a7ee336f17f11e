// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

func bgpCommand(env environment, config *cluster.Config) *cobra.Command {
	command := &cobra.Command{
		Use:   "bgp",
		Short: "Show the nodes' BGP sessions and routes",
	}
	command.AddCommand(
		bgpListCommand(env, config, "peers", "Show the nodes' BGP sessions", render.BGPPeers),
		bgpListCommand(env, config, "routes", "Show the routes that nodes announce", render.BGPRoutes),
		bgpVerifyCommand(env, config),
	)
	return command
}

func bgpListCommand(
	env environment, config *cluster.Config, name, short string, write func(io.Writer, []consoleapi.BGP, render.Options) error,
) *cobra.Command {
	var nodes []string
	var output string
	command := &cobra.Command{
		Use:   name,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			format, err := parseFormat(output)
			if err != nil {
				return err
			}
			answers, err := queryBGP(command.Context(), env, *config, nodes, name)
			if err != nil {
				return err
			}
			return write(env.stdout, answers, render.Options{Format: format, Width: env.width, Colour: env.colour})
		},
	}
	nodesFlag(command, config, &nodes)
	command.Flags().StringVarP(&output, "output", "o", "", "output `format`: wide, json or yaml")
	registerCompletion(command, "output", fixed(formats()...))
	return command
}

// queryBGP returns sorted BGP states: sessions from the aggregated API if possible, routes from agents.
func queryBGP(ctx context.Context, env environment, config cluster.Config, nodes []string, what string) ([]consoleapi.BGP, error) {
	liveErr := cluster.ErrNoLive
	if what == "peers" {
		var states []consoleapi.BGP
		if states, liveErr = sessionsLive(ctx, env, config, nodes); liveErr == nil {
			return states, nil
		}
		if errors.Is(liveErr, errAgentsFailed) {
			return nil, liveErr
		}
	}
	states, err := queryAgentsBGP(ctx, env, config, nodes, what)
	return states, joinLiveError(err, liveErr)
}

func queryAgentsBGP(ctx context.Context, env environment, config cluster.Config, nodes []string, what string) ([]consoleapi.BGP, error) {
	query := agentQuery[consoleapi.BGP]{
		command: []string{"bgp", what}, extract: func(line *consoleapi.Line) *consoleapi.BGP { return line.BGP },
	}
	states, err := query.run(ctx, env, config, nodes)
	for _, bgp := range states {
		for i, peer := range bgp.Peers {
			bgp.Peers[i] = report.ToSeconds(peer)
		}
	}
	return states, err
}
