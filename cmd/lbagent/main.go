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
	"github.com/spf13/pflag"
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

// command returns the command line. getenv gives defaults of flags.
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
	root.PersistentFlags().StringVar(&config.PinRoot, "pin-root", config.PinRoot,
		"folder in a BPF file system in which maps and links outlive the agent")
	addFlags(root.Flags(), &config)
	root.Flags().StringVar(&logLevel, "log-level", logLevel, "least level that is logged: debug, info, warn or error")
	root.PersistentFlags().StringVar(&config.Socket, "socket", config.Socket,
		"path of the socket at which drops, top and trace ask the agent; empty: none")
	root.AddCommand(cleanupCommand(&config), dumpCommand(&config), versionCommand())
	root.AddCommand(lookCommands(&config, stdin)...)
	return root
}

func addFlags(flags *pflag.FlagSet, config *lbagent.Config) {
	flags.StringVar(&config.NodeName, "node-name", config.NodeName,
		"name of the Node that the agent runs on (default: the variable NODE_NAME)")
	flags.StringVar(&config.Kubeconfig, "kubeconfig", config.Kubeconfig,
		"kubeconfig file (default: the service account of the pod)")
	flags.StringSliceVar(&config.Uplinks, "uplinks", config.Uplinks,
		"names of the interfaces to attach to, or globs of names (default: those that carry a default route or the node's addresses)")
	flags.IntVar(&config.MaxFrontends, "max-frontends", config.MaxFrontends, "ports of VIPs that fit")
	flags.IntVar(&config.MaxTables, "max-tables", config.MaxTables,
		"Service ports with externalTrafficPolicy Cluster that fit, counted for each address family; 32 KiB of memory each")
	flags.IntVar(&config.MaxEndpointTables, "max-endpoint-tables", config.MaxEndpointTables,
		"Service ports with endpoints on this node that fit, counted for each address family; 2 KiB of memory each")
	flags.IntVar(&config.MaxEndpoints, "max-endpoints", config.MaxEndpoints, "endpoints on this node that fit")
	flags.IntVar(&config.MaxVIPs, "max-vips", config.MaxVIPs, "VIPs that fit")
	flags.IntVar(&config.MaxSourceRanges, "max-source-ranges", config.MaxSourceRanges,
		"prefixes of loadBalancerSourceRanges that fit, for each address family; a list is counted twice while it changes")
	flags.IntVar(&config.Connections, "connections", config.Connections,
		"TCP connections that are remembered, for each address family; about 250 bytes of memory each")
	flags.IntVar(&config.Datagrams, "udp-flows", config.Datagrams,
		"the same for answered flows of UDP (default: a quarter of --connections)")
	flags.IntVar(&config.Affinities, "affinity-clients", config.Affinities,
		"clients whose endpoint is remembered for sessionAffinity ClientIP, for each address family; about 100 bytes of memory each (default: an eighth of --connections)")
	flags.IntVar(&config.Exceptions, "exceptions", config.Exceptions,
		"flows that other nodes hold against their row and that are sent straight there, for each address family; about 100 bytes of memory each (default: as many as --connections)")
	flags.StringVar(&config.MetricsBindAddress, "metrics-bind-address", config.MetricsBindAddress,
		"host:port that serves /metrics, /healthz and /readyz; 0: none")
	flags.DurationVar(&config.WithdrawDelay, "withdraw-delay", config.WithdrawDelay,
		"how long packets are still taken after their route was withdrawn")
}

func cleanupCommand(config *lbagent.Config) *cobra.Command {
	return &cobra.Command{
		Use:   "cleanup",
		Short: "Detach the programs from all interfaces and remove all maps: for uninstalling",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return lbagent.Cleanup(config.PinRoot)
		},
	}
}

func dumpCommand(config *lbagent.Config) *cobra.Command {
	return &cobra.Command{
		Use:   "dump",
		Short: "Print what the node's pinned maps hold",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lbagent.Dump(config.PinRoot, cmd.OutOrStdout())
		},
	}
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
