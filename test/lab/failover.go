// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/test/harness"
	"github.com/millrace-lb/millrace/test/lab/internal/failover"
)

func (a *app) failoverCommand() *cobra.Command {
	var only []string
	var list bool
	command := &cobra.Command{
		Use:   "failover",
		Short: "Measure what clients notice of failures and changes on the running lab",
		Long: `Measure what clients notice of failures and changes on the running lab.

Sends 200 requests a second to a VIP, each on a new connection, and holds 200 connections
beside that, while a node dies, a link is cut, an agent is upgraded and so on. Prints how many
requests failed, the longest time in which some did, and which held connections broke, each
beside its limit. Ends with 1 where a limit is missed. Needs three nodes and two routers:

  lab up --routers 2 --node-grace 0

That lab has Kubernetes' own times, as clusters have. Installs Millrace if it is not installed.`,
		Args: exactly(0),
		RunE: func(command *cobra.Command, _ []string) error {
			if list {
				return failover.List(os.Stdout)
			}
			if err := failover.Check(only); err != nil {
				return usageError{err}
			}
			lab, err := a.open()
			if err != nil {
				return err
			}
			hosts, err := lab.Hosts()
			if err != nil {
				return err
			}
			names := make([]string, 0, len(hosts))
			for _, host := range hosts {
				names = append(names, host.Name)
			}
			if err := failover.Fits(names, lab.NodeGrace); err != nil {
				return usageError{err}
			}
			driven, err := harness.Open(os.Stderr)
			if err != nil {
				return err
			}
			return failover.Run(command.Context(), driven, lab.Router, only, os.Stdout)
		},
	}
	command.Flags().StringSliceVar(&only, "only", nil, "names of the events to measure (default: all but those that --list says otherwise of)")
	command.Flags().BoolVar(&list, "list", false, "list the events and their limits, and measure nothing")
	return command
}
