// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/sysdump"
)

func sysdumpCommand(env environment, config *cluster.Config) *cobra.Command {
	var file string
	limits := sysdump.Usual
	command := &cobra.Command{
		Use:   "sysdump",
		Short: "Write the data for a bug report to an archive",
		Long: "Write objects, events, logs and the agents' state to an archive for a bug report.\n" +
			"The archive has no data of Secrets, but addresses, names and connections: review it before publishing.",
		Example: "  millrace sysdump --file dump.tar.gz",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			now := time.Now().UTC()
			if file == "" {
				file = "millrace-sysdump-" + now.Format("20060102-150405") + ".tar.gz"
			}
			of, err := cluster.SysdumpCluster(command.Context(), *config, version)
			if err != nil {
				return err
			}
			out, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				return fmt.Errorf("create the archive: %w; give another --file", err)
			}
			missing, err := sysdump.Dump(command.Context(), of, limits, now, out)
			if err = errors.Join(err, out.Close()); err != nil {
				return errors.Join(err, os.Remove(file))
			}
			for _, what := range missing {
				fmt.Fprintf(env.stderr, "millrace: missing: %s\n", what)
			}
			fmt.Fprintf(env.stdout, "%s\n", file)
			return command.Context().Err()
		},
	}
	command.Flags().StringVarP(&file, "file", "f", "", "archive to write (default: millrace-sysdump-TIME.tar.gz)")
	command.Flags().DurationVar(&limits.Whole, "limit", limits.Whole, "time limit of the whole dump")
	return command
}
