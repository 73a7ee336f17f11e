// SPDX-License-Identifier: Apache-2.0

// Package console queries the consoles of agents (api/console) on many nodes.
package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// Runner runs the agent's program on a node, and writes nothing after it has returned.
type Runner interface {
	Run(ctx context.Context, node string, args []string, out io.Writer) error
}

// Answer is a line from a node, or the end of its stream.
type Answer struct {
	Node string
	Line consoleapi.Line
	// Ended is true in a node's last answer; Err is the cause unless the end was requested.
	Ended bool
	Err   error
}

// AtOnce limits the agents that are queried concurrently, because each needs a stream of the API server.
const AtOnce = 16

// ErrEnded is returned when an agent ends a stream, for example because it restarts.
var ErrEnded = errors.New("the agent ended")

// Follow sends the lines of all nodes and closes the channel after all streams have ended. Streams that end
// because ctx is done have no error.
func Follow(ctx context.Context, runner Runner, nodes, args []string) <-chan Answer {
	answers := make(chan Answer)
	var group sync.WaitGroup
	for _, node := range nodes {
		group.Go(func() {
			out := &lines{each: func(line consoleapi.Line) { answers <- Answer{Node: node, Line: line} }}
			err := runner.Run(ctx, node, args, out)
			switch {
			case ctx.Err() != nil:
				err = nil
			case err == nil:
				err = ErrEnded
			}
			answers <- Answer{Node: node, Ended: true, Err: err}
		})
	}
	go func() {
		group.Wait()
		close(answers)
	}()
	return answers
}

// Ask runs a command that prints one line.
func Ask(ctx context.Context, runner Runner, node string, args []string) (consoleapi.Line, error) {
	var answer consoleapi.Line
	answered := false
	out := &lines{each: func(line consoleapi.Line) { answer, answered = line, true }}
	if err := runner.Run(ctx, node, args, out); err != nil {
		return consoleapi.Line{}, err
	}
	if !answered {
		return consoleapi.Line{}, errors.New("the agent did not answer: it may have an older version")
	}
	return answer, nil
}

// Round is a query of many agents.
type Round struct {
	Runner Runner
	Limit  time.Duration
	// Stop is an error that applies to all agents, so that the remaining ones are not queried.
	Stop error
}

// Ask returns the one-line answers by node, from AtOnce nodes concurrently.
func (r Round) Ask(ctx context.Context, nodes, args []string) map[string]Answer {
	var mu sync.Mutex
	var stopped error
	answers := make(map[string]Answer, len(nodes))
	var group errgroup.Group
	group.SetLimit(AtOnce)
	for _, node := range nodes {
		group.Go(func() error {
			mu.Lock()
			answer := Answer{Node: node, Err: stopped}
			mu.Unlock()
			if answer.Err == nil {
				answer.Line, answer.Err = r.one(ctx, node, args)
			}
			mu.Lock()
			defer mu.Unlock()
			if r.Stop != nil && errors.Is(answer.Err, r.Stop) {
				stopped = answer.Err
			}
			answers[node] = answer
			return nil
		})
	}
	_ = group.Wait()
	return answers
}

const (
	minRest    = 2 * time.Second
	maxRest    = time.Minute
	restFactor = 9
)

// RestAfter returns a pause that limits queries to a tenth of the time. It is at most maxRest, because the
// duration of a round with silent agents is no measure of its cost.
func RestAfter(took time.Duration) time.Duration {
	return min(max(minRest, restFactor*took), maxRest)
}

func (r Round) one(ctx context.Context, node string, args []string) (consoleapi.Line, error) {
	limited, cancel := context.WithTimeout(ctx, r.Limit)
	defer cancel()
	line, err := Ask(limited, r.Runner, node, args)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %s", r.Limit)
	}
	return line, err
}

// Bounded returns a Runner for at most AtOnce concurrent commands, each ended after a number of lines.
func Bounded(runner Runner, lines int) Runner {
	return bounded{runner, lines, make(chan struct{}, AtOnce)}
}

type bounded struct {
	runner Runner
	lines  int
	places chan struct{}
}

func (b bounded) Run(ctx context.Context, node string, args []string, out io.Writer) error {
	select {
	case b.places <- struct{}{}:
		defer func() { <-b.places }()
	case <-ctx.Done():
		return ctx.Err()
	}
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	err := b.runner.Run(limited, node, args, &countdown{out, b.lines, cancel})
	if limited.Err() != nil && ctx.Err() == nil {
		// The limit of lines ended the command.
		return nil
	}
	return err
}

type countdown struct {
	out    io.Writer
	left   int
	enough func()
}

func (c *countdown) Write(text []byte) (int, error) {
	written := 0
	for c.left > 0 && written < len(text) {
		end := len(text)
		if at := bytes.IndexByte(text[written:], '\n'); at >= 0 {
			end = written + at + 1
			c.left--
		}
		n, err := c.out.Write(text[written:end])
		written += n
		if err != nil {
			return written, err
		}
	}
	if c.left == 0 {
		c.enough()
	}
	return len(text), nil
}

// maxLine is the maximum length of a line in bytes: the counters of all frontends.
const maxLine = 64 << 20

type lines struct {
	rest []byte
	each func(consoleapi.Line)
}

func (l *lines) Write(text []byte) (int, error) {
	l.rest = append(l.rest, text...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			if len(l.rest) > maxLine {
				return 0, fmt.Errorf("a line of more than %d bytes", maxLine)
			}
			return len(text), nil
		}
		l.rest = rest
		var decoded consoleapi.Line
		if err := json.Unmarshal(line, &decoded); err != nil {
			return 0, fmt.Errorf("read the agent's answer %.100q: %w", line, err)
		}
		l.each(decoded)
	}
}
