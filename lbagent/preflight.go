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

// PreflightOf is what Preflight needs to know of the cluster.
type PreflightOf struct {
	// Node is its name, Addresses are its own.
	Node      string
	Addresses []netip.Addr
	// Uplinks are those of Config.
	Uplinks []string
	// Nodes are addresses of the other nodes, where something answers them (PreflightAnswer).
	Nodes []netip.Addr
	// Installed: an agent runs on the node.
	Installed bool
}

// Preflight writes what on this node keeps Millrace from working, as a line of package api/console.
// It changes nothing.
func Preflight(ctx context.Context, of PreflightOf, out io.Writer) error {
	facts, err := preflight.Read(of.Uplinks, of.Addresses)
	if err != nil {
		return err
	}
	if !of.Installed {
		facts.Ask(ctx, of.Addresses, of.Nodes)
	}
	told := consoleapi.Preflight{Node: of.Node, Findings: preflight.Judge(facts, of.Installed)}
	if err := json.NewEncoder(out).Encode(consoleapi.Line{Preflight: &told}); err != nil {
		return fmt.Errorf("print the findings: %w", err)
	}
	return nil
}

// PreflightAnswer answers the preflights of other nodes until ctx is done.
func PreflightAnswer(ctx context.Context) error { return preflight.Answer(ctx) }
