// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/millrace-lb/millrace/test/lab/internal/config"
)

func (a *app) execCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "exec HOST -- COMMAND…",
		Short: "Run a command on a host and pass its exit code on",
		Long: `Run a command on a host, in all its namespaces, and pass its exit code on.

Hosts see this machine's files, except that nodes have their own /run, /var/lib,
/var/log, /sys/fs/bpf and /sys/fs/cgroup, and routers their own /run and /etc/frr or /etc/bird.
On nodes, ctr and runc are on the PATH.`,
		Args: atLeast(2),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.exec(args[0], args[1:])
		},
	}
	command.Flags().SetInterspersed(false)
	return command
}

func (a *app) exec(host string, args []string) error {
	lab, err := a.open()
	if err != nil {
		return err
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return usageError{fmt.Errorf("no command for %s given", host)}
	}
	code, err := lab.Exec(host, args)
	if err == nil && code != 0 {
		err = exitCode(code)
	}
	return err
}

func (a *app) kubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl ARGS…",
		Short:              "Run kubectl as administrator of the lab's cluster",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			lab, err := a.open()
			if err != nil {
				return err
			}
			return lab.Kubectl(args)
		},
	}
}

func (a *app) vtyshCommand() *cobra.Command { return a.shellCommand(config.FRR, "vtysh", "FRR") }

func (a *app) birdcCommand() *cobra.Command { return a.shellCommand(config.BIRD, "birdc", "BIRD") }

// shellCommand runs the shell of the routers' software.
func (a *app) shellCommand(router config.Router, shell, name string) *cobra.Command {
	command := &cobra.Command{
		Use:   shell + " ROUTER -- ARGS…",
		Short: "Run " + name + "'s shell on a router",
		Args:  atLeast(1),
		RunE: func(_ *cobra.Command, args []string) error {
			lab, err := a.open()
			if err != nil {
				return err
			}
			if lab.Router != router {
				return usageError{fmt.Errorf("the routers of this lab run %s: `lab up --router %s` makes one with %s", lab.Router, router, name)}
			}
			rest := args[1:]
			if len(rest) > 0 && rest[0] == "--" {
				rest = rest[1:]
			}
			return a.exec(args[0], append([]string{shell}, rest...))
		},
	}
	command.Flags().SetInterspersed(false)
	return command
}

func (a *app) bgpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "bgp ROUTER",
		Short: "Show the BGP sessions and routes of a router",
		Args:  exactly(1),
		RunE: func(_ *cobra.Command, args []string) error {
			lab, err := a.open()
			if err != nil {
				return err
			}
			return a.exec(args[0], lab.Router.Summary())
		},
	}
}

func (a *app) nodeCommand() *cobra.Command {
	node := &cobra.Command{Use: "node", Short: "Switch nodes off and on"}
	node.AddCommand(
		&cobra.Command{
			Use:   "stop NODE",
			Short: "End a node at once, as a power loss does",
			Args:  exactly(1),
			RunE: func(_ *cobra.Command, args []string) error {
				lab, err := a.open()
				if err != nil {
					return err
				}
				return lab.StopNode(args[0])
			},
		},
		&cobra.Command{
			Use:   "start NODE",
			Short: "Boot a stopped node and wait until it is Ready",
			Args:  exactly(1),
			RunE: func(command *cobra.Command, args []string) error {
				lab, err := a.open()
				if err != nil {
					return err
				}
				return lab.StartNode(command.Context(), args[0])
			},
		},
	)
	return node
}

func (a *app) linkCommand() *cobra.Command {
	link := &cobra.Command{Use: "link", Short: "Cut and mend the links of a host"}
	for _, action := range []struct {
		name, short string
		up          bool
	}{
		{"down", "Cut all links of a host", false},
		{"up", "Mend all links of a host", true},
	} {
		link.AddCommand(&cobra.Command{
			Use:   action.name + " HOST",
			Short: action.short,
			Args:  exactly(1),
			RunE: func(_ *cobra.Command, args []string) error {
				lab, err := a.open()
				if err != nil {
					return err
				}
				return lab.SetLink(args[0], action.up)
			},
		})
	}
	return link
}

func (a *app) imageCommand() *cobra.Command {
	image := &cobra.Command{Use: "image", Short: "Give container images to the nodes"}
	image.AddCommand(&cobra.Command{
		Use:   "load FILE.tar…",
		Short: "Import OCI image archives into every node",
		Args:  atLeast(1),
		RunE: func(command *cobra.Command, args []string) error {
			lab, err := a.open()
			if err != nil {
				return err
			}
			for _, archive := range args {
				path, err := filepath.Abs(archive)
				if err != nil {
					return fmt.Errorf("load image %s: %w", archive, err)
				}
				if err := lab.LoadImage(command.Context(), path); err != nil {
					return err
				}
			}
			return nil
		},
	})
	return image
}
