// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/test/harness"
	"github.com/millrace-lb/millrace/test/lab/internal/bench"
)

var errBenchOptions = errors.New("rounds and flows must be positive, duration 100ms at least")

func (a *app) benchCommand() *cobra.Command {
	options := bench.Options{}
	command := &cobra.Command{
		Use:   "bench",
		Short: "Compare Millrace with kube-proxy's nftables on the running lab",
		Long: `Compare Millrace with kube-proxy's nftables on the running lab.

Sends small datagrams from the client to one pod, through a VIP of Millrace and through
an external IP of kube-proxy, where the pod is on the ingress node and
where it is on another, and prints the processor time of a packet in the nodes. Then
the same of a node that only forwards, alone. Installs Millrace if it is not installed,
and has its agents send by XDP meanwhile. Who else uses the machine makes packets per second
fewer, but costs little in the processor time of each.`,
		Args: exactly(0),
		RunE: func(command *cobra.Command, _ []string) error {
			if options.Rounds < 1 || options.Duration < 100*time.Millisecond || options.Flows < 1 {
				return usageError{errBenchOptions}
			}
			if _, err := a.open(); err != nil {
				return err
			}
			driven, err := harness.Open(os.Stderr)
			if err != nil {
				return err
			}
			return bench.Run(command.Context(), driven, options, os.Stdout)
		},
	}
	flags := command.Flags()
	flags.IntVar(&options.Rounds, "rounds", 9, "how often each path is measured")
	flags.DurationVar(&options.Duration, "duration", time.Second, "how long each measurement takes")
	flags.BoolVar(&options.Strict, "strict", false, "fail where a node that only forwards is not 3 times as fast as kube-proxy")
	flags.IntVar(&options.Flows, "flows", 1000, "how many flows take turns")
	return command
}
