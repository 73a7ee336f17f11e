// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/console"
)

const (
	drainInterval = time.Second
	// idleTime is the time without packets after which a node counts as drained.
	idleTime = 3 * time.Second
	// namedVIPs limits the addresses in a message.
	namedVIPs = 5
)

func drainCommand(env environment, config *cluster.Config) *cobra.Command {
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "drain NODE",
		Short: "Drain a node: withdraw its routes and wait until traffic has moved",
		Long: "Set the annotation " + millracev1beta1.AnnotationDrain + " on the Node. Its routes are then announced with the community\n" +
			"GRACEFUL_SHUTDOWN (RFC 8326), and withdrawn. Connections continue through other nodes; pods keep running.\n" +
			"The node stays drained until `millrace undrain`, even after a reboot.",
		Example:           "  millrace drain node1 && ssh node1 reboot\n  millrace undrain node1",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: argument(0, complete(config, cluster.Nodes)),
		RunE: func(command *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(command.Context(), timeout)
			defer cancel()
			agents, err := cluster.FindAgents(ctx, *config)
			if err != nil {
				return err
			}
			if err := cluster.SetDrain(ctx, *config, args[0], true); err != nil {
				return err
			}
			isDraining := func(ctx context.Context) (bool, error) {
				reason, err := cluster.DrainReason(ctx, *config, args[0])
				return reason != "", err
			}
			return waitDrained(ctx, env, agents, args[0], isDraining)
		},
	}
	command.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "maximum `time` to wait; the node continues to drain afterwards")
	return command
}

func undrainCommand(env environment, config *cluster.Config) *cobra.Command {
	return &cobra.Command{
		Use:               "undrain NODE",
		Short:             "Undrain a node: announce its routes again",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: argument(0, complete(config, cluster.Nodes)),
		RunE: func(command *cobra.Command, args []string) error {
			if err := cluster.SetDrain(command.Context(), *config, args[0], false); err != nil {
				return err
			}
			reason, err := cluster.DrainReason(command.Context(), *config, args[0])
			if err != nil {
				return err
			}
			if reason != "" && reason != millracev1beta1.DrainReasonDrained {
				_, err = fmt.Fprintf(env.stdout, "%s is no longer drained, but its routes stay withdrawn: %s\n", args[0], reason)
				return err
			}
			_, err = fmt.Fprintf(env.stdout, "%s announces its routes again\n", args[0])
			return err
		},
	}
}

// drainProgress is the progress of a drain as observed at the node.
type drainProgress struct {
	isDraining bool
	announced  []netip.Addr
	// packets counts packets from routers; it has not changed since the time since.
	packets   uint64
	since     time.Time
	isCounted bool
}

func (d *drainProgress) count(packets uint64, now time.Time) {
	if !d.isCounted || packets != d.packets {
		d.packets, d.since, d.isCounted = packets, now, true
	}
}

func (d *drainProgress) done(now time.Time) (bool, string) {
	switch {
	case !d.isDraining:
		return false, "the operator has not set LBNode.spec.drainReason yet"
	case len(d.announced) > 0:
		return false, "still announced: " + formatAddresses(d.announced)
	case !d.isCounted || now.Sub(d.since) < idleTime:
		return false, "routers still send packets"
	}
	return true, ""
}

func formatAddresses(addresses []netip.Addr) string {
	var names []string
	for _, address := range addresses[:min(len(addresses), namedVIPs)] {
		names = append(names, address.String())
	}
	if more := len(addresses) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

func (d *drainProgress) update(ctx context.Context, runner console.Runner, node string, now time.Time) error {
	line, err := console.Query(ctx, runner, node, []string{"vips"})
	if err != nil {
		return err
	}
	if line.VIPs == nil {
		return errors.New("the agent did not return its announcements: it may have an older version")
	}
	d.announced = announcedAddresses(line.VIPs)
	if line, err = console.Query(ctx, runner, node, []string{"top"}); err != nil {
		return err
	}
	if line.Counters == nil {
		return errors.New("the agent did not return its counters: it may have an older version")
	}
	var packets uint64
	for _, frontend := range line.Counters.Frontends {
		packets += frontend.Packets
	}
	d.count(packets, now)
	return nil
}

func announcedAddresses(vips *consoleapi.VIPs) []netip.Addr {
	var announced []netip.Addr
	for _, group := range vips.Groups {
		if len(group.Peers) > 0 {
			announced = append(announced, group.Addresses...)
		}
	}
	return announced
}

// waitDrained polls until the node is drained or ctx is done.
func waitDrained(
	ctx context.Context, env environment, runner console.Runner, node string, isDraining func(context.Context) (bool, error),
) error {
	var d drainProgress
	ticker := time.NewTicker(drainInterval)
	defer ticker.Stop()
	printed := ""
	for {
		var err error
		if !d.isDraining {
			d.isDraining, err = isDraining(ctx)
		}
		if err == nil {
			err = d.update(ctx, runner, node, time.Now())
		}
		done, waiting := d.done(time.Now())
		switch {
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("%s drains, but its progress is unknown: %w", node, err)
		case done:
			_, err := fmt.Fprintf(env.stdout, "%s is drained: no packet was received for %s\n", node, idleTime)
			return err
		case waiting != printed && ctx.Err() == nil:
			printed = waiting
			if _, err := fmt.Fprintln(env.stdout, waiting); err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is not drained yet: %s; VIPs that no other node can take stay announced", node, printed)
		}
	}
}
