// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/lbagent"
)

// preflightCommand returns the command preflight, which does not need a running agent.
func preflightCommand(config *lbagent.Config) *cobra.Command {
	var of lbagent.PreflightCluster
	var nodes []string
	var answer bool
	command := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether Millrace can work on this node without changing it, and print a line of JSON",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if answer {
				return lbagent.ServePreflight(cmd.Context())
			}
			of.Node = config.NodeName
			if of.Addresses, of.Nodes, err = parseNodes(of.Node, nodes); err != nil {
				return err
			}
			return lbagent.Preflight(cmd.Context(), of, cmd.OutOrStdout())
		},
	}
	flags := command.Flags()
	flags.StringSliceVar(&of.Uplinks, "uplinks", nil, "names or globs of the uplinks' `interfaces`, like the agent's flag")
	flags.StringSliceVar(&nodes, "node", nil, "a node that runs --answer, with its address, as `NAME=ADDRESS`, including this node; repeatable")
	flags.BoolVar(&of.Installed, "installed", false, "an agent runs on this node: skip checks that conflict with it")
	flags.BoolVar(&answer, "answer", false, "answer other nodes until terminated")
	return command
}

func parseNodes(self string, nodes []string) (own, others []netip.Addr, err error) {
	for _, text := range nodes {
		name, address, _ := strings.Cut(text, "=")
		parsed, err := netip.ParseAddr(address)
		if err != nil {
			return nil, nil, fmt.Errorf("--node=%s: must be NAME=ADDRESS: %w", text, err)
		}
		if name == self {
			own = append(own, parsed.Unmap())
		} else {
			others = append(others, parsed.Unmap())
		}
	}
	return own, others, nil
}
