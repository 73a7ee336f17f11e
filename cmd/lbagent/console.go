// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent"
)

// consoleCommands returns the commands that `millrace` runs on every node. They print JSON (api/console).
func consoleCommands(config *lbagent.Config, stdin io.Reader) []*cobra.Command {
	commands := []*cobra.Command{
		dropsCommand(config), topCommand(config), traceCommand(config), vipsCommand(config), bgpCommand(config), duplicatesCommand(config),
		historyCommand(config), preflightCommand(config), dumpCommand(config),
	}
	for _, command := range commands {
		var untilEOF bool
		command.Flags().BoolVar(&untilEOF, "until-eof", false,
			"exit at the end of standard input, for remote clients that may disconnect")
		run := command.RunE
		command.RunE = func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			if untilEOF {
				go func() {
					defer cancel()
					_, _ = io.Copy(io.Discard, stdin)
				}()
			}
			cmd.SetContext(ctx)
			return run(cmd, args)
		}
	}
	return commands
}

func dropsCommand(config *lbagent.Config) *cobra.Command {
	var follow bool
	command := &cobra.Command{
		Use:   "drops",
		Short: "Print the counters of dropped packets and the latest samples as lines of JSON",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return sendRequest(cmd, config, lbagent.Request{Command: "drops", Follow: follow})
		},
	}
	command.Flags().BoolVarP(&follow, "follow", "f", false, "follow new samples")
	return command
}

func topCommand(config *lbagent.Config) *cobra.Command {
	request := lbagent.Request{Command: "top"}
	var vips []string
	command := &cobra.Command{
		Use:   "top",
		Short: "Print the counters of the frontends as lines of JSON",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if request.Addresses, err = parseVIPs(vips); err != nil {
				return err
			}
			return sendRequest(cmd, config, request)
		},
	}
	command.Flags().StringSliceVar(&vips, "vip", nil, "only frontends of these `addresses` (default all)")
	command.Flags().StringVar(&request.Namespace, "namespace", "", "only frontends of Services of this `namespace` (default all)")
	command.Flags().DurationVar(&request.Interval, "interval", 0, "print repeatedly at this interval; 0: once")
	return command
}

func traceCommand(config *lbagent.Config) *cobra.Command {
	var packet consoleapi.Packet
	var raw string
	command := &cobra.Command{
		Use:   "trace [SOURCE:PORT VIP:PORT]",
		Short: "Trace a packet on this node without sending it, and print a line of JSON",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := readPacket(&packet, raw, args); err != nil {
				return err
			}
			return sendRequest(cmd, config, lbagent.Request{Command: "trace", Packet: &packet})
		},
	}
	flags := command.Flags()
	flags.StringVar(&packet.Protocol, "proto", "tcp", "tcp, udp or sctp")
	flags.BoolVar(&packet.Midstream, "midstream", false, "packet of an established connection, for TCP an ACK")
	flags.StringVar(&raw, "packet", "", "IP packet in base64, for example from a trace on another node")
	return command
}

func vipsCommand(config *lbagent.Config) *cobra.Command {
	return &cobra.Command{
		Use:   "vips [ADDRESS…]",
		Short: "Print the peers that this node announces VIPs to, or the reason why not, as a line of JSON",
		RunE: func(cmd *cobra.Command, args []string) error {
			return sendAddresses(cmd, config, "vips", args)
		},
	}
}

func sendRequest(cmd *cobra.Command, config *lbagent.Config, request lbagent.Request) error {
	return lbagent.Query(cmd.Context(), config.Socket, request, cmd.OutOrStdout())
}

func sendAddresses(cmd *cobra.Command, config *lbagent.Config, command lbagent.Command, texts []string) error {
	addresses, err := parseVIPs(texts)
	if err != nil {
		return err
	}
	return sendRequest(cmd, config, lbagent.Request{Command: command, Addresses: addresses})
}

func parseVIPs(texts []string) ([]netip.Addr, error) {
	addresses := make([]netip.Addr, 0, len(texts))
	for _, text := range texts {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("VIP: %w", err)
		}
		addresses = append(addresses, address.Unmap())
	}
	return addresses, nil
}

func bgpCommand(config *lbagent.Config) *cobra.Command {
	return &cobra.Command{
		Use:       "bgp peers|routes",
		Short:     "Print this node's BGP sessions or announced routes as a line of JSON",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"peers", "routes"},
		RunE: func(cmd *cobra.Command, args []string) error {
			return sendRequest(cmd, config, lbagent.Request{Command: "bgp " + lbagent.Command(args[0])})
		},
	}
}

func duplicatesCommand(config *lbagent.Config) *cobra.Command {
	return &cobra.Command{
		Use:   "duplicates ADDRESS…",
		Short: "Probe the links of the uplinks for hosts with addresses, and print them as a line of JSON",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return sendAddresses(cmd, config, "duplicates", args)
		},
	}
}

func historyCommand(config *lbagent.Config) *cobra.Command {
	var of consoleapi.HistoryQuery
	var from, to string
	command := &cobra.Command{
		Use:   "history",
		Short: "Print this node's history as a line of JSON",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if of.From, err = parseTime("from", from); err != nil {
				return err
			}
			if of.To, err = parseTime("to", to); err != nil {
				return err
			}
			return sendRequest(cmd, config, lbagent.Request{Command: "history", History: &of})
		},
	}
	flags := command.Flags()
	flags.StringVar(&from, "from", "", "earliest `time` of entries (RFC 3339)")
	flags.StringVar(&to, "to", "", "latest `time` of entries (RFC 3339)")
	flags.StringVar(&of.Service, "service", "", "exclude entries about other Services than `namespace/name`")
	flags.IntVar(&of.Last, "last", 0, "maximum number of entries, the newest; 0: all")
	return command
}

func parseTime(flag, text string) (at time.Time, err error) {
	if text == "" {
		return time.Time{}, nil
	}
	if at, err = time.Parse(time.RFC3339, text); err != nil {
		return time.Time{}, fmt.Errorf("--%s: %w; write 2026-11-26T03:12:00Z", flag, err)
	}
	return at, nil
}

func readPacket(packet *consoleapi.Packet, raw string, args []string) (err error) {
	switch {
	case raw != "" && len(args) == 0:
		if packet.Raw, err = base64.StdEncoding.DecodeString(raw); err != nil {
			return fmt.Errorf("--packet: %w", err)
		}
		return nil
	case raw != "" || len(args) != 2:
		return errors.New("SOURCE:PORT and VIP:PORT, or --packet are required")
	}
	if packet.Source, err = netip.ParseAddrPort(args[0]); err != nil {
		return fmt.Errorf("source: %w; write 198.51.100.1:40000 or [2001:db8::1]:40000", err)
	}
	if packet.Destination, err = netip.ParseAddrPort(args[1]); err != nil {
		return fmt.Errorf("destination: %w; write 203.0.113.1:80 or [2001:db8:cafe::1]:80", err)
	}
	return nil
}
