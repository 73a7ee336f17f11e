// SPDX-License-Identifier: Apache-2.0

// Command mkchart writes the Helm chart of this checkout to a new directory:
//
//	mkchart --output dist/chart/millrace
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/hack/chart"
)

func main() {
	if err := newCommand().ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "mkchart:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	version := chart.Development
	var root, output string
	command := &cobra.Command{
		Use:           "mkchart --output DIRECTORY",
		Short:         "Write the Helm chart",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(command *cobra.Command, _ []string) error {
			files, err := chart.Files(command.Context(), root, version)
			if err != nil {
				return err
			}
			if err := os.RemoveAll(output); err != nil {
				return fmt.Errorf("empty the output: %w", err)
			}
			for name, content := range files {
				file := filepath.Join(output, filepath.FromSlash(name))
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					return fmt.Errorf("write the chart: %w", err)
				}
				if err := os.WriteFile(file, content, 0o644); err != nil {
					return fmt.Errorf("write the chart: %w", err)
				}
			}
			return nil
		},
	}
	flags := command.Flags()
	flags.StringVar(&root, "root", ".", "checkout")
	flags.StringVar(&output, "output", "dist/chart/millrace", "directory to write; its previous content is removed")
	flags.StringVar(&version.Chart, "version", version.Chart, "version of the chart, without v")
	flags.StringVar(&version.App, "tag", version.App, "tag of the images")
	flags.StringVar(&version.Registry, "registry", version.Registry, "prefix of the images' names")
	return command
}
