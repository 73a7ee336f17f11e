// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/ingressnginx"
)

func migrateNginxCommand(env environment) *cobra.Command {
	return &cobra.Command{
		Use:   "ingress-nginx [FILE…]",
		Short: "Print what would become of the annotations of Ingresses that were written for ingress-nginx",
		Long: "Read Ingresses from files, or from standard input, as kubectl prints them, and print what becomes of each of\n" +
			"their annotations of ingress-nginx in a class of Millrace with the parameter annotations: ingress-nginx.\n" +
			"No cluster is asked, so Secrets, Services and other Ingresses that they need are not looked at. The exit code\n" +
			"is 0 where all is carried out or changes nothing, and 2 where not.",
		Example: "  kubectl get ingresses -A -o yaml | millrace migrate ingress-nginx",
		RunE: func(_ *cobra.Command, args []string) error {
			in, err := inputs(env.stdin, args)
			if err != nil {
				return err
			}
			rows, err := ingressnginx.Read(in)
			if err != nil {
				return err
			}
			if len(rows) == 0 {
				_, err := fmt.Fprintln(env.stdout, "No annotations of ingress-nginx.")
				return err
			}
			if err := ingressnginx.Write(env.stdout, rows); err != nil {
				return err
			}
			if slices.ContainsFunc(rows, func(row ingressnginx.Row) bool { return row.IsLost }) {
				return errProblems
			}
			return nil
		},
	}
}
