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

// Dump prints the node's pinned maps as a table, or as one consoleapi.Maps if asJSON is set, even without an
// agent.
func Dump(pinRoot string, asJSON bool, out io.Writer) error {
	state, err := dataplane.Read(pinRoot)
	if err != nil {
		return fmt.Errorf("read the data plane below %s: %w", pinRoot, err)
	}
	return dump.Write(state, asJSON, out)
}

// A Request is a console request to a running agent.
type Request = console.Request

// A Command is the kind of a Request, such as "vips" or "bgp peers".
type Command = console.Command

// Query sends a request to the agent at the socket and writes the response lines of package api/console. It
// returns when the response or ctx ends.
func Query(ctx context.Context, socket string, request Request, out io.Writer) error {
	return console.Query(ctx, socket, request, out)
}
