// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/preflight"
)

// PreflightCluster is the cluster's part of the input of Preflight.
type PreflightCluster struct {
	// Addresses are those of Node.
	Node      string
	Addresses []netip.Addr
	// Uplinks has the semantics of Config.Uplinks.
	Uplinks []string
	// Nodes are addresses of other nodes at which ServePreflight runs.
	Nodes []netip.Addr
	// Installed reports whether an agent runs on the node.
	Installed bool
}

// Preflight writes findings about this node as a line of package api/console. It changes nothing.
func Preflight(ctx context.Context, of PreflightCluster, out io.Writer) error {
	facts, err := preflight.Read(of.Uplinks, of.Addresses)
	if err != nil {
		return err
	}
	if !of.Installed {
		facts.ProbeNodes(ctx, of.Addresses, of.Nodes)
	}
	result := consoleapi.Preflight{Node: of.Node, Findings: preflight.Evaluate(facts, of.Installed)}
	if err := json.NewEncoder(out).Encode(consoleapi.Line{Preflight: &result}); err != nil {
		return fmt.Errorf("print the findings: %w", err)
	}
	return nil
}

// ServePreflight replies to the preflights of other nodes until ctx is done.
func ServePreflight(ctx context.Context) error { return preflight.Serve(ctx) }
