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

// agentRequest is a request to agents; of selects the answer in the first line of output.
type agentRequest[T any] struct {
	request []string
	of      func(*consoleapi.Line) *T
}

// ask sends the request to the agents of nodes, or of all, and returns the answers in the order of the
// nodes. Failures of single agents are written to stderr.
func (q agentRequest[T]) ask(ctx context.Context, env environment, config cluster.Config, nodes []string) ([]T, error) {
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
	round := console.Round{Runner: found, Limit: limit, Stop: cluster.ErrForbidden}
	answers := round.Ask(ctx, nodes, q.request)
	var told []T
	for _, node := range slices.SortedFunc(slices.Values(nodes), report.CompareNames) {
		answer := answers[node]
		said := q.of(&answer.Line)
		switch {
		case errors.Is(answer.Err, cluster.ErrForbidden):
			// The permission is missing for the agents of all nodes.
			return nil, answer.Err
		case answer.Err != nil:
			fmt.Fprintf(env.stderr, "millrace: %s: %v\n", node, answer.Err)
		case said == nil:
			fmt.Fprintf(env.stderr, "millrace: %s: it may have another version\n", node)
		default:
			told = append(told, *said)
		}
	}
	if len(told) == 0 && ctx.Err() == nil {
		return nil, errNoAgent
	}
	return told, ctx.Err()
}
