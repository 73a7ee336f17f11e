// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/usage"
)

func duplicatesCommand(env environment, config *cluster.Config) *cobra.Command {
	var nodes []string
	var output string
	command := &cobra.Command{
		Use:   "duplicates ADDRESS...",
		Short: "Probe which hosts on the nodes' networks have addresses",
		Long: "Probe which hosts on the networks of the nodes' uplinks have addresses, by ARP and Neighbor Discovery.\n" +
			"The addresses need not be VIPs: probe them before adding them to a pool.",
		Example: "  millrace duplicates 203.0.113.7",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			asJSON, err := parseJSON(output)
			if err != nil {
				return err
			}
			for _, text := range args {
				if _, err := usage.Address(text); err != nil {
					return err
				}
			}
			hosts := agentQuery[consoleapi.Hosts]{
				command: append([]string{"duplicates"}, args...),
				extract: func(line *consoleapi.Line) *consoleapi.Hosts { return line.Hosts },
			}
			answers, err := hosts.run(command.Context(), env, *config, nodes)
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
