// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/test/harness"
	"github.com/millrace-lb/millrace/test/lab/internal/flood"
)

var errFloodOptions = errors.New("packets and rate must be positive")

func (a *app) floodCommand() *cobra.Command {
	options := flood.Options{}
	command := &cobra.Command{
		Use:   "flood",
		Short: "Flood a VIP of the running lab and measure the effect on other clients",
		Long: `Flood a VIP of the running lab and measure the effect on other clients.

Sends packets of each kind from made-up sources to one VIP, and packets of the tunnel that
pretend to come from a node. Holds 1000 connections of two other Services meanwhile. Prints how many
packets the nodes sent to each other for each of the flood, how many connections broke, and the
99th percentile of the time that answers took before the flood and during it. Ends with 1 where
a limit is missed. Installs Millrace if it is not installed.

Sender, nodes and pods share this machine's processors: at a rate that leaves none idle all
answers take longer.`,
		Args: exactly(0),
		RunE: func(command *cobra.Command, _ []string) error {
			if options.Packets < 1 || options.Rate < 1 {
				return usageError{errFloodOptions}
			}
			if err := flood.Check(options.Kinds); err != nil {
				return usageError{err}
			}
			lab, err := a.open()
			if err != nil {
				return err
			}
			driven, err := harness.Open(os.Stderr)
			if err != nil {
				return err
			}
			return flood.Run(command.Context(), driven, lab.OnFabric, options, os.Stdout)
		},
	}
	flags := command.Flags()
	flags.IntVar(&options.Packets, "packets", 10_000_000, "how many packets each flood has")
	flags.IntVar(&options.Rate, "rate", 50_000, "how many packets are sent in a second")
	flags.StringSliceVar(&options.Kinds, "only", nil, "kinds of packets to send (default: all)")
	return command
}
