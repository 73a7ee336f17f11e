// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/test/harness"
	"github.com/millrace-lb/millrace/test/lab/internal/cluster"
	"github.com/millrace-lb/millrace/test/lab/internal/upstream"
)

func (a *app) upstreamCommand() *cobra.Command {
	var options upstream.Options
	var buildOnly bool
	command := &cobra.Command{
		Use:   "kubernetes-e2e",
		Short: "Run Kubernetes' own end-to-end tests on the running lab",
		Long: `Run Kubernetes' own end-to-end tests on the running lab.

They run on the client, at Kubernetes' version of the lab, after Millrace was installed.
Bring the lab up with --ipv4-nodes for them. The image of their pods holds programs of
this machine (hack/prerequisites.sh --kubernetes-e2e).`,
		Args: exactly(0),
		RunE: func(command *cobra.Command, _ []string) error {
			root, err := projectRoot()
			if err != nil {
				return err
			}
			if buildOnly {
				_, _, err := cluster.BuildTests(command.Context(), root, progress())
				return err
			}
			lab, err := a.open()
			if err != nil {
				return err
			}
			driven, err := harness.Open(os.Stderr)
			if err != nil {
				return err
			}
			program, workload, err := cluster.BuildTests(command.Context(), root, progress())
			if err != nil {
				return err
			}
			options.Tests, options.Workload = program, workload
			options.Kubernetes, options.Kubeconfig = lab.Kubernetes(), lab.Kubeconfig("admin")
			options.Folder = lab.Folder()
			options.Reports = filepath.Join(root, "dist", "kubernetes-e2e")
			return upstream.Run(command.Context(), driven, options, os.Stdout)
		},
	}
	command.Flags().StringVar(&options.Focus, "focus", `\[sig-network\] LoadBalancers`, "regular expression of the tests to run")
	command.Flags().BoolVar(&buildOnly, "build-only", false, "only build the tests, for which no lab has to be up")
	command.Flags().StringVar(&options.Skip, "skip", "", "regular expression of the tests to leave out")
	return command
}
