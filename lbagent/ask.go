// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"fmt"
	"io"

	"github.com/millrace-lb/millrace/lbagent/internal/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/dump"
)

// Dump prints what the node's pinned maps hold, whether an agent runs or not: as a table, or
// where asJSON as one consoleapi.Maps.
func Dump(pinRoot string, asJSON bool, out io.Writer) error {
	state, err := dataplane.Read(pinRoot)
	if err != nil {
		return fmt.Errorf("read the data plane below %s: %w", pinRoot, err)
	}
	return dump.Write(state, asJSON, out)
}

// A Request is a question to a running agent.
type Request = console.Request

// A Command is the kind of a Request, as "vips" or "bgp peers".
type Command = console.Command

// Ask sends a request to the agent at the socket and writes the lines of its answer, which are those of
// package api/console. It returns when the answer or ctx ends.
func Ask(ctx context.Context, socket string, request Request, out io.Writer) error {
	return console.Ask(ctx, socket, request, out)
}
