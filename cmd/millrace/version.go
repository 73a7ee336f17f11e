// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

type versions struct {
	Client  string          `json:"client"`
	Servers []report.Server `json:"servers"`
}

func versionCommand(env environment, config *cluster.Config) *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program, with -o json also of the servers",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			asJSON, err := parseJSON(output)
			if err != nil {
				return err
			}
			if !asJSON {
				_, err := fmt.Fprintln(env.stdout, version)
				return err
			}
			all := versions{Client: version, Servers: []report.Server{}}
			in, err := cluster.Read(command.Context(), *config)
			if err == nil && slices.Contains(in.Omitted, "Pods") {
				err = fmt.Errorf("%w: you may not list pods in namespace %s: Role millrace-viewer of that namespace permits it",
					cluster.ErrForbidden, config.Namespace)
			}
			if err == nil {
				all.Servers = report.Servers(in.Pods, in.LBNodeReports)
			}
			encoder := json.NewEncoder(env.stdout)
			encoder.SetIndent("", "  ")
			return errors.Join(err, encoder.Encode(all))
		},
	}
	jsonFlag(command, &output, "output `format`: json, with the versions of the servers in the cluster")
	return command
}
