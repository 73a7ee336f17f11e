// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/cluster"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/console"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
)

// agentQuery is a command to agents; extract selects the response in the first line of output.
type agentQuery[T any] struct {
	command []string
	extract func(*consoleapi.Line) *T
}

// run sends the command to the agents of nodes, or of all, and returns the responses in the order of the
// nodes. Failures of single agents are written to stderr.
func (q agentQuery[T]) run(ctx context.Context, env environment, config cluster.Config, nodes []string) ([]T, error) {
	var found agents
	var err error
	if env.agents != nil {
		found, err = env.agents(config, nil)
	} else {
		found, err = cluster.FindAgents(ctx, config)
	}
	if err != nil {
		return nil, err
	}
	if len(nodes) == 0 {
		nodes = found.Nodes()
	}
	limit := config.Timeout
	if limit == 0 {
		limit = time.Minute
	}
	batch := console.Batch{Runner: found, Limit: limit, Stop: cluster.ErrForbidden}
	responses := batch.Query(ctx, nodes, q.command)
	var results []T
	for _, node := range slices.SortedFunc(slices.Values(nodes), report.CompareNames) {
		response := responses[node]
		result := q.extract(&response.Line)
		switch {
		case errors.Is(response.Err, cluster.ErrForbidden):
			// The permission is missing for the agents of all nodes.
			return nil, response.Err
		case response.Err != nil:
			fmt.Fprintf(env.stderr, "millrace: %s: %v\n", node, response.Err)
		case result == nil:
			fmt.Fprintf(env.stderr, "millrace: %s: it may have another version\n", node)
		default:
			results = append(results, *result)
		}
	}
	if len(results) == 0 && ctx.Err() == nil {
		return nil, errAgentsFailed
	}
	return results, ctx.Err()
}
