// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/analysis"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/manifests"
)

func migrateNginxCommand(env environment, config *cluster.Config) *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "ingress-nginx [FILE…]",
		Short: "Validate Ingresses written for ingress-nginx",
		Long: "Read Ingresses from files or standard input, as printed by kubectl, and compile them for classes of\n" +
			"Millrace with the parameter annotations: ingress-nginx. Each annotation that would be ignored, and each\n" +
			"rule that would not be served, is reported as a problem. Nothing else is printed.\n\n" +
			"No cluster is read: include the objects that Ingresses need. Secrets are assumed to exist, and Services too\n" +
			"if the files contain no Service. The exit code is 0 without problems and 2 with problems.",
		Example: "  kubectl get ingresses,ingressclasses,services,configmaps,referencegrants,backendtlspolicies -A -o yaml |\n" +
			"    millrace migrate ingress-nginx",
		RunE: func(_ *cobra.Command, args []string) error {
			format, err := parseFormat(output)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				args = []string{"-"}
			}
			return printAnalysis(env, args, "default", format, func(objects *manifests.Objects) (*analysis.View, error) {
				return analysis.IngressNginx(objects, analysis.Options{Namespace: config.Namespace})
			})
		},
	}
	command.Flags().StringVarP(&output, "output", "o", "", "output `format`: wide, json or yaml")
	registerCompletion(command, "output", fixed(formats()...))
	return command
}
