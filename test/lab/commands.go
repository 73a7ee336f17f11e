// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/test/lab/internal/cluster"
	"github.com/millrace-lb/millrace/test/lab/internal/config"
	"github.com/millrace-lb/millrace/test/lab/internal/machine"
	"github.com/millrace-lb/millrace/test/lab/internal/topology"
)

const defaultNodeGrace = 20 * time.Second

type app struct {
	state string
}

func (a *app) stateDir() (string, error) {
	if a.state != "" {
		return filepath.Abs(a.state)
	}
	root, err := projectRoot()
	if err != nil {
		return "", fmt.Errorf("%w, or give --state", err)
	}
	return filepath.Join(root, ".lab"), nil
}

func (a *app) open() (*cluster.Lab, error) {
	if err := cluster.RequireRoot(); err != nil {
		return nil, err
	}
	dir, err := a.stateDir()
	if err != nil {
		return nil, err
	}
	return cluster.Open(dir)
}

func projectRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the project: %w", err)
	}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "hack", "lab", "kubernetes", "go.mod")); err == nil {
			return at, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s does not lie in a checkout of the project: change to one", dir)
		}
	}
}

// progress returns a function that prints messages with the time since now.
func progress() cluster.Progress {
	start := time.Now()
	return func(format string, args ...any) {
		fmt.Printf("%6.1fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
}

func exactly(n int) cobra.PositionalArgs { return usage(cobra.ExactArgs(n)) }

func atLeast(n int) cobra.PositionalArgs { return usage(cobra.MinimumNArgs(n)) }

func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if err := check(command, args); err != nil {
			return usageError{fmt.Errorf("%w: usage: %s", err, command.UseLine())}
		}
		return nil
	}
}

func (a *app) upCommand() *cobra.Command {
	options := cluster.Options{}
	var cni, router string
	command := &cobra.Command{
		Use:   "up",
		Short: "Bring a lab up and wait until its nodes are Ready",
		Args:  exactly(0),
		RunE: func(command *cobra.Command, _ []string) error {
			if options.NodeGrace != config.KubernetesTiming && options.NodeGrace < 4*time.Second {
				return usageError{fmt.Errorf("--node-grace is %s: want 4s at least, or 0 for Kubernetes' own", options.NodeGrace)}
			}
			if _, err := topology.New(options.Nodes, options.Routers); err != nil {
				return usageError{err}
			}
			var err error
			if options.CNI, err = config.ParseCNI(cni); err != nil {
				return usageError{err}
			}
			if options.Router, err = config.ParseRouter(router); err != nil {
				return usageError{err}
			}
			if !slices.Contains(config.ProxyModes(), options.ProxyMode) {
				return usageError{fmt.Errorf("there is no mode %q of kube-proxy: choose one of %s",
					options.ProxyMode, strings.Join(config.ProxyModes(), ", "))}
			}
			return a.up(command, options)
		},
	}
	flags := command.Flags()
	flags.StringVar(&cni, "cni", envOr("MILLRACE_LAB_CNI", string(config.PTP)),
		"what connects the pods: "+config.CNINames()+" (also MILLRACE_LAB_CNI)")
	flags.StringVar(&options.ProxyMode, "kube-proxy", envOr("MILLRACE_LAB_KUBE_PROXY", config.ProxyModes()[0]),
		"mode of kube-proxy: "+strings.Join(config.ProxyModes(), ", ")+" (also MILLRACE_LAB_KUBE_PROXY)")
	flags.StringVar(&router, "router", envOr("MILLRACE_LAB_ROUTER", string(config.Routers()[0])),
		"routing daemon of the routers: "+config.RouterNames()+" (also MILLRACE_LAB_ROUTER)")
	flags.IntVar(&options.Nodes, "nodes", 3, "number of Kubernetes nodes")
	flags.IntVar(&options.Routers, "routers", 1, "number of routers; 0: the client is in the nodes' network, as in a home")
	flags.DurationVar(&options.NodeGrace, "node-grace", defaultNodeGrace,
		"how long a node may be silent until Kubernetes takes it for failed; 0 leaves that, and all that goes with it, as Kubernetes has it")
	flags.BoolVar(&options.IPv4Nodes, "ipv4-nodes", false, "have Nodes list their IPv4 addresses alone")
	return command
}

func (a *app) up(command *cobra.Command, options cluster.Options) error {
	if err := cluster.RequireRoot(); err != nil {
		return err
	}
	var err error
	if options.Root, err = projectRoot(); err != nil {
		return err
	}
	if options.State, err = a.stateDir(); err != nil {
		return err
	}
	report := progress()
	if err := cluster.Up(command.Context(), options, report); err != nil {
		return err
	}
	report("the lab is up")
	return nil
}

func (a *app) downCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Remove the lab, including the remains of a failed start",
		Args:  exactly(0),
		RunE: func(*cobra.Command, []string) error {
			if err := cluster.RequireRoot(); err != nil {
				return err
			}
			dir, err := a.stateDir()
			if err != nil {
				return err
			}
			found, err := cluster.Down(dir)
			if err != nil {
				return err
			}
			if !found {
				fmt.Println("there was no lab")
				return nil
			}
			fmt.Println("the lab is down and nothing of it is left")
			return nil
		},
	}
}

func envOr(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func (a *app) buildCommand() *cobra.Command {
	var name string
	command := &cobra.Command{
		Use:   "build",
		Short: "Build the programs that a lab runs into the cache",
		Args:  exactly(0),
		RunE: func(command *cobra.Command, _ []string) error {
			root, err := projectRoot()
			if err != nil {
				return err
			}
			cni, err := config.ParseCNI(name)
			if err != nil {
				return usageError{err}
			}
			programs, _, err := cluster.Build(command.Context(), root, cni, progress())
			if err != nil {
				return err
			}
			for _, name := range slices.Sorted(maps.Keys(programs)) {
				fmt.Println(programs[name])
			}
			return nil
		},
	}
	command.Flags().StringVar(&name, "cni", string(config.PTP), "build also the programs of a CNI: "+config.CNINames())
	return command
}

func (a *app) hostsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "hosts",
		Short: "List the hosts of the lab",
		Args:  exactly(0),
		RunE: func(*cobra.Command, []string) error {
			lab, err := a.open()
			if err != nil {
				return err
			}
			hosts, err := lab.Hosts()
			if err != nil {
				return err
			}
			table := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
			fmt.Fprintln(table, "HOST\tROLE\tSTATE\tPID\tINTERFACE\tADDRESSES")
			for _, host := range hosts {
				writeHost(table, host)
			}
			return table.Flush()
		},
	}
}

func writeHost(table *tabwriter.Writer, host cluster.HostStatus) {
	state, pid := "running", fmt.Sprint(host.Pid)
	if host.Pid == 0 {
		state, pid = "stopped", "-"
	}
	for i, iface := range host.Interfaces {
		name, role := host.Name, string(host.Role)
		if i > 0 {
			name, role, state, pid = "", "", "", ""
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s %s\n", name, role, state, pid, iface.Name, iface.Addresses[0], iface.Addresses[1])
	}
}

func initCommand() *cobra.Command {
	return &cobra.Command{
		Use:    machine.Command + " DIR STAGE",
		Hidden: true,
		Args:   exactly(2),
		RunE:   func(_ *cobra.Command, args []string) error { return machine.Init(args[0], args[1]) },
	}
}
