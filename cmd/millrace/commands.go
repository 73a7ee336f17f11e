// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/render"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// errProblems ends `status --exit-code` where there are problems; what they
// are has been written already.
var errProblems = errors.New("there are problems")

func newCommand(env environment) *cobra.Command {
	var config cluster.Config
	root := &cobra.Command{
		Use:   "millrace",
		Short: "Show what Millrace does in a cluster and what is wrong",
		// kubectl completes and explains a plug-in by the name that the user types.
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: calledAs(env.args[0])},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&config.Kubeconfig, "kubeconfig", "", "kubeconfig `file` (default KUBECONFIG, then ~/.kube/config)")
	flags.StringVar(&config.Context, "context", "", "context of the kubeconfig (default its current one)")
	flags.StringVarP(&config.Namespace, "namespace", "n", "millrace-system", "namespace that Millrace is installed in")
	flags.DurationVar(&config.Timeout, "request-timeout", 10*time.Second, "time limit of one request to the API server")
	root.AddCommand(
		statusCommand(env, &config),
		listCommand(env, &config, "vips", "Show the VIPs, whose they are and who announces them", render.VIPs),
		listCommand(env, &config, "nodes", "Show the nodes, their agents and BGP sessions", render.Nodes),
		dropsCommand(env, &config),
		topCommand(env, &config),
		traceCommand(env, &config),
		versionCommand(env),
	)
	return root
}

// renderer writes a report, or a part of it.
type renderer func(io.Writer, *report.View, render.Options) error

func statusCommand(env environment, config *cluster.Config) *cobra.Command {
	var exitCode bool
	status := func(out io.Writer, view *report.View, options render.Options) error {
		if err := render.Status(out, view, options); err != nil {
			return err
		}
		if exitCode && len(view.Problems) > 0 {
			return errProblems
		}
		return nil
	}
	command := listCommand(env, config, "status", "Show VIPs, nodes and problems on one screen", status)
	command.Long = "Show VIPs, nodes and every problem on one screen.\n\n" +
		"The exit code is 0 when the cluster could be read and 1 when not; with --exit-code it is 2 when there are problems."
	command.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 2 when there are problems")
	return command
}

func listCommand(env environment, config *cluster.Config, name, short string, write renderer) *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   name,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			format, err := parseFormat(output)
			if err != nil {
				return err
			}
			view, err := readView(command.Context(), *config)
			if err != nil {
				return err
			}
			return write(env.stdout, view, render.Options{Format: format, Width: env.width, Colour: env.colour})
		},
	}
	command.Flags().StringVarP(&output, "output", "o", "", "output `format`: wide, json or yaml")
	return command
}

func readView(ctx context.Context, config cluster.Config) (*report.View, error) {
	in, err := cluster.Read(ctx, config)
	if err != nil {
		return nil, err
	}
	return report.Build(in), nil
}

func parseFormat(text string) (render.Format, error) {
	formats := []string{string(render.Wide), string(render.JSON), string(render.YAML)}
	if text != "" && !slices.Contains(formats, text) {
		return "", fmt.Errorf("--output=%s: must be one of %s", text, strings.Join(formats, ", "))
	}
	return render.Format(text), nil
}

func versionCommand(env environment) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(env.stdout, version)
			return err
		},
	}
}
