// SPDX-License-Identifier: Apache-2.0

// Command lbagent is the agent of a node.
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

// version is set at build time.
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

// command returns the command line. getenv returns defaults of flags.
func command(getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) *cobra.Command {
	config := lbagent.DefaultConfig()
	config.Version = version
	config.NodeName = getenv("NODE_NAME")
	logLevel := "info"
	root := &cobra.Command{
		Use:           "lbagent",
		Short:         "Keep a node's load balancing and BGP sessions as Millrace's objects say",
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
		"directory in a BPF file system in which maps and links outlive the agent")
	root.PersistentFlags().StringVar(&config.StateDir, "state-dir", config.StateDir,
		"directory in a tmpfs that keeps the objects for an agent which starts without the API server; empty: none")
	config.AddFlags(root.Flags())
	root.Flags().StringVar(&logLevel, "log-level", logLevel, "least level that is logged: debug, info, warn or error")
	root.PersistentFlags().StringVar(&config.Socket, "socket", config.Socket,
		"path of the console's socket, at which drops, top, trace and vips ask the agent; empty: none")
	root.AddCommand(cleanupCommand(&config), versionCommand())
	root.AddCommand(consoleCommands(&config, stdin)...)
	return root
}

func cleanupCommand(config *lbagent.Config) *cobra.Command {
	var wait, check bool
	command := &cobra.Command{
		Use:   "cleanup",
		Short: "Detach the programs from all interfaces and remove all maps: for uninstalling",
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
	command.Flags().BoolVar(&wait, "wait", false, "stay until terminated, as the container of a DaemonSet must")
	command.Flags().BoolVar(&check, "check", false, "remove nothing, and fail as long as anything is left")
	command.MarkFlagsMutuallyExclusive("wait", "check")
	return command
}

func dumpCommand(config *lbagent.Config) *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "dump",
		Short: "Print what the node's pinned maps hold",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "" && output != "json" {
				return fmt.Errorf("--output is %q, must be json or nothing", output)
			}
			return lbagent.Dump(config.PinRoot, output == "json", cmd.OutOrStdout())
		},
	}
	command.Flags().StringVarP(&output, "output", "o", "", "json: one object, for programs; empty: a table")
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

// newLogger returns a logger of JSON lines.
func newLogger(level string, out io.Writer) (logr.Logger, error) {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return logr.Logger{}, fmt.Errorf("--log-level is %q, must be debug, info, warn or error", level)
	}
	return logr.FromSlogHandler(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: least})), nil
}
