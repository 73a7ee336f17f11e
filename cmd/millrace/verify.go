// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/api/canary"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
)

func bgpVerifyCommand(env environment, config *cluster.Config) *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "verify [PEER]",
		Short: "Show whether routers use the routes of all nodes",
		Long: "Show the results of the nodes' probes through their routers, for LBPeers with canaries.\n" +
			"The exit code is 2 if a router does not reach all nodes, or the result is not conclusive yet.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			asJSON, err := parseJSON(output)
			if err != nil {
				return err
			}
			reports, nodes, err := cluster.Reports(command.Context(), *config)
			if err != nil {
				return err
			}
			verdicts := canary.Judge(reports, canary.IDs(nodes))
			if len(args) > 0 {
				verdicts = slices.DeleteFunc(verdicts, func(v canary.Verdict) bool { return v.Peer != args[0] })
			}
			if len(verdicts) == 0 && !asJSON {
				if err := cluster.HasPeer(command.Context(), *config, args); err != nil {
					return err
				}
				return fmt.Errorf("verify routers: no node has an established session with an LBPeer that has spec.canaries%s", of(args))
			}
			options := render.Options{Format: jsonFormat(asJSON), Width: env.width, Colour: env.colour}
			if err := render.Verdicts(env.stdout, verdicts, options); err != nil {
				return err
			}
			if len(verdicts) == 0 || slices.ContainsFunc(verdicts, func(v canary.Verdict) bool { return !v.OK() }) {
				return errProblems
			}
			return nil
		},
	}
	jsonFlag(command, &output, "output `format`: json")
	return command
}

func of(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return " and is called " + args[0]
}
