// SPDX-License-Identifier: Apache-2.0

// Command lbagent is the agent that runs on each node: it announces VIPs and forwards their packets.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/millrace-lb/millrace/lbagent"
)

var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(os.Getenv, os.Stdin, os.Stdout, os.Stderr).ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "lbagent: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// command returns the root command. getenv returns environment variables with defaults of flags.
func command(getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) *cobra.Command {
	config := lbagent.DefaultConfig()
	config.Version = version
	config.NodeName = getenv("NODE_NAME")
	logLevel := "info"
	root := &cobra.Command{
		Use:           "lbagent",
		Short:         "Run the load balancing and the BGP sessions of a node according to Millrace's objects",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger, err := newLogger(logLevel, stderr)
			if err != nil {
				return err
			}
			klog.SetLogger(logger.WithName("client-go"))
			logger.Info("Starting", "version", version, "node", config.NodeName)
			return lbagent.Run(cmd.Context(), config, logger)
		},
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.CompletionOptions.DisableDefaultCmd = true
	root.Version = version
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentFlags().StringVar(&config.PinRoot, "pin-root", config.PinRoot,
		"directory in a BPF file system for pinned maps and links")
	root.PersistentFlags().StringVar(&config.StateDir, "state-dir", config.StateDir,
		"directory in a tmpfs for the checkpoint of objects, for starts without the API server; empty: disabled")
	config.AddFlags(root.Flags())
	root.Flags().StringVar(&logLevel, "log-level", logLevel, "log level: debug, info, warn or error")
	root.PersistentFlags().StringVar(&config.Socket, "socket", config.Socket,
		"path of the console's socket for commands such as drops, top, trace and vips; empty: disabled")
	root.AddCommand(cleanupCommand(&config), versionCommand())
	root.AddCommand(consoleCommands(&config, stdin)...)
	return root
}

func cleanupCommand(config *lbagent.Config) *cobra.Command {
	var wait, check bool
	command := &cobra.Command{
		Use:   "cleanup",
		Short: "Detach the programs from all interfaces and remove all maps, for uninstalling",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check {
				return lbagent.CheckClean(config.PinRoot)
			}
			logger, err := newLogger("info", cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if err := lbagent.Cleanup(cmd.Context(), config.PinRoot, config.StateDir, logger); err != nil {
				return err
			}
			if wait {
				<-cmd.Context().Done()
			}
			return nil
		},
	}
	command.Flags().BoolVar(&wait, "wait", false, "run until terminated, for the container of a DaemonSet")
	command.Flags().BoolVar(&check, "check", false, "remove nothing, and fail as long as programs or maps exist")
	command.MarkFlagsMutuallyExclusive("wait", "check")
	return command
}

func dumpCommand(config *lbagent.Config) *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "dump",
		Short: "Print the content of the node's pinned maps",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output is %q, must be json or empty", output)
			}
			return lbagent.Dump(config.PinRoot, output == "json", cmd.OutOrStdout())
		},
	}
	command.Flags().StringVarP(&output, "output", "o", "", "json: one object; empty: a table")
	return command
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
			return err
		},
	}
}

func newLogger(level string, out io.Writer) (logr.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return logr.Logger{}, fmt.Errorf("--log-level is %q, must be debug, info, warn or error", level)
	}
	return logr.FromSlogHandler(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: least})), nil
}
