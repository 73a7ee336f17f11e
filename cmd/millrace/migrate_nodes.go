// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cutover"
)

// namedServices limits the Services in a message.
const namedServices = 5

func migrateNodesCommand(env environment, config *cluster.Config) *cobra.Command {
	var back bool
	var speaker string
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "nodes [NODE…]",
		Short: "Move BGP sessions from MetalLB's speakers to Millrace, node by node",
		Long: "Move the given nodes, by default all, one after another. A router accepts one session per node address,\n" +
			"so the speaker on a node stops first, and Millrace then establishes the session. The next node waits until\n" +
			"all sessions are established and VIPs are announced. If that takes longer than --timeout, the node is moved\n" +
			"back, and the command ends.\n\n" +
			"In MetalLB's mode frr-k8s it also deletes the FRRConfiguration of a stopped speaker, so that frr-k8s closes\n" +
			"its sessions. Sessions of other FRRConfigurations are kept.\n\n" +
			"It labels Nodes with " + millracev1beta1.LabelAnnouncer + ", and excludes these Nodes from the speakers' DaemonSet.\n" +
			"LBPeers must select " + millracev1beta1.LabelAnnouncer + "=" + millracev1beta1.AnnouncerMillrace +
			", as printed by `millrace migrate metallb --by-node`.",
		Example:           "  millrace migrate nodes\n  millrace migrate nodes --back node1",
		ValidArgsFunction: complete(config, cluster.Nodes),
		RunE: func(command *cobra.Command, args []string) error {
			target, err := cluster.NewCutover(*config, speaker)
			if err != nil {
				return err
			}
			migrator := &cutover.Migrator{Cluster: target, Timeout: timeout, Log: func(line string) { fmt.Fprintln(env.stdout, line) }}
			return migrateNodes(command.Context(), target, migrator, args, back)
		},
	}
	flags := command.Flags()
	flags.BoolVar(&back, "back", false, "move the sessions back to MetalLB's speakers")
	flags.StringVar(&speaker, "speaker", "metallb-system/speaker", "`NAMESPACE/NAME` of the DaemonSet of MetalLB's speakers")
	flags.DurationVar(&timeout, "timeout", 2*time.Minute, "maximum `time` of each of the two steps of a node")
	return command
}

type migrationTarget interface {
	ExcludeMigrated(ctx context.Context) error
	Unclaimed(ctx context.Context) ([]string, error)
	OtherUsers(ctx context.Context, nodes []string) ([]string, error)
	Nodes(ctx context.Context) ([]string, error)
	Announcer(ctx context.Context, node string) (string, error)
}

func migrateNodes(ctx context.Context, target migrationTarget, migrator *cutover.Migrator, nodes []string, back bool) error {
	if len(nodes) == 0 {
		all, err := target.Nodes(ctx)
		if err != nil {
			return err
		}
		nodes = all
	}
	// Validate all names before anything is changed.
	for _, node := range nodes {
		if _, err := target.Announcer(ctx, node); err != nil {
			return err
		}
	}
	if len(nodes) == 0 {
		return errors.New("no node has an agent of Millrace: install it first")
	}
	step, want := migrator.Move, millracev1beta1.AnnouncerMillrace
	if back {
		step, want = migrator.MoveBack, ""
	} else if err := checkMigration(ctx, target, migrator.Log, nodes); err != nil {
		return err
	}
	if err := target.ExcludeMigrated(ctx); err != nil {
		return err
	}
	for i, node := range nodes {
		have, err := target.Announcer(ctx, node)
		if err != nil {
			return err
		}
		if have == want {
			migrator.Log(node + ": already moved")
			continue
		}
		if err := step(ctx, node); err != nil {
			return fmt.Errorf("moved %d of %d nodes: %w", i, len(nodes), err)
		}
	}
	return nil
}

// checkMigration also prints which other programs need frr-k8s.
func checkMigration(ctx context.Context, target migrationTarget, log func(string), nodes []string) error {
	if err := checkClaims(ctx, target); err != nil {
		return err
	}
	others, err := target.OtherUsers(ctx, nodes)
	for _, line := range others {
		log(line)
	}
	return err
}

// checkClaims returns an error as long as Millrace would announce fewer VIPs than MetalLB.
func checkClaims(ctx context.Context, target migrationTarget) error {
	missing, err := target.Unclaimed(ctx)
	if err != nil || len(missing) == 0 {
		return err
	}
	return fmt.Errorf("Millrace has no VIP of %d addresses of Services, such as %q: see condition %s of each, and run the operator with --adopt-only",
		len(missing), missing[:min(len(missing), namedServices)], millracev1beta1.ConditionAddressAssigned)
}
