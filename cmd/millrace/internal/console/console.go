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

// Response is a line from a node, or the end of its stream.
type Response struct {
	Node string
	Line consoleapi.Line
	// Ended is true in a node's last answer; Err is the cause unless the end was requested.
	Ended bool
	Err   error
}

// MaxConcurrent limits the agents that are queried concurrently, because each needs a stream of the API
// server.
const MaxConcurrent = 16

// ErrEnded is returned when an agent ends a stream, for example because it restarts.
var ErrEnded = errors.New("the agent ended")

// Follow sends the lines of all nodes and closes the channel after all streams have ended. Streams that end
// because ctx is done have no error.
func Follow(ctx context.Context, runner Runner, nodes, args []string) <-chan Response {
	responses := make(chan Response)
	var group sync.WaitGroup
	for _, node := range nodes {
		group.Go(func() {
			out := &lineDecoder{handle: func(line consoleapi.Line) { responses <- Response{Node: node, Line: line} }}
			err := runner.Run(ctx, node, args, out)
			switch {
			case ctx.Err() != nil:
				err = nil
			case err == nil:
				err = ErrEnded
			}
			responses <- Response{Node: node, Ended: true, Err: err}
		})
	}
	go func() {
		group.Wait()
		close(responses)
	}()
	return responses
}

// Query runs a command that prints one line.
func Query(ctx context.Context, runner Runner, node string, args []string) (consoleapi.Line, error) {
	var response consoleapi.Line
	received := false
	out := &lineDecoder{handle: func(line consoleapi.Line) { response, received = line, true }}
	if err := runner.Run(ctx, node, args, out); err != nil {
		return consoleapi.Line{}, err
	}
	if !received {
		return consoleapi.Line{}, errors.New("the agent did not answer: it may have an older version")
	}
	return response, nil
}

// Batch is a query of many agents.
type Batch struct {
	Runner Runner
	Limit  time.Duration
	// Stop is an error that applies to all agents, so that the remaining ones are not queried.
	Stop error
}

// Query returns the one-line responses by node, from MaxConcurrent nodes concurrently.
func (r Batch) Query(ctx context.Context, nodes, args []string) map[string]Response {
	var mu sync.Mutex
	var stopped error
	responses := make(map[string]Response, len(nodes))
	var group errgroup.Group
	group.SetLimit(MaxConcurrent)
	for _, node := range nodes {
		group.Go(func() error {
			mu.Lock()
			response := Response{Node: node, Err: stopped}
			mu.Unlock()
			if response.Err == nil {
				response.Line, response.Err = r.queryOne(ctx, node, args)
			}
			mu.Lock()
			defer mu.Unlock()
			if r.Stop != nil && errors.Is(response.Err, r.Stop) {
				stopped = response.Err
			}
			responses[node] = response
			return nil
		})
	}
	_ = group.Wait()
	return responses
}

const (
	minPause    = 2 * time.Second
	maxPause    = time.Minute
	pauseFactor = 9
)

// PauseAfter returns a pause that limits queries to a tenth of the time. It is at most maxPause, because the
// duration of a round with silent agents is no measure of its cost.
func PauseAfter(took time.Duration) time.Duration {
	return min(max(minPause, pauseFactor*took), maxPause)
}

func (r Batch) queryOne(ctx context.Context, node string, args []string) (consoleapi.Line, error) {
	limited, cancel := context.WithTimeout(ctx, r.Limit)
	defer cancel()
	line, err := Query(limited, r.Runner, node, args)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %s", r.Limit)
	}
	return line, err
}

// Bounded returns a Runner for at most MaxConcurrent concurrent commands, each ended after a number of lines.
func Bounded(runner Runner, lines int) Runner {
	return bounded{runner, lines, make(chan struct{}, MaxConcurrent)}
}

type bounded struct {
	runner Runner
	lines  int
	slots  chan struct{}
}

func (b bounded) Run(ctx context.Context, node string, args []string, out io.Writer) error {
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	err := b.runner.Run(limited, node, args, &lineLimiter{out, b.lines, cancel})
	if limited.Err() != nil && ctx.Err() == nil {
		// The limit of lines ended the command.
		return nil
	}
	return err
}

type lineLimiter struct {
	out       io.Writer
	remaining int
	cancel    func()
}

func (c *lineLimiter) Write(text []byte) (int, error) {
	written := 0
	for c.remaining > 0 && written < len(text) {
		end := len(text)
		if at := bytes.IndexByte(text[written:], '\n'); at >= 0 {
			end = written + at + 1
			c.remaining--
		}
		n, err := c.out.Write(text[written:end])
		written += n
		if err != nil {
			return written, err
		}
	}
	if c.remaining == 0 {
		c.cancel()
	}
	return len(text), nil
}

// maxLine is the maximum length of a line in bytes: the counters of all frontends.
const maxLine = 64 << 20

type lineDecoder struct {
	buffer []byte
	handle func(consoleapi.Line)
}

func (l *lineDecoder) Write(text []byte) (int, error) {
	l.buffer = append(l.buffer, text...)
	for {
		line, rest, whole := bytes.Cut(l.buffer, []byte("\n"))
		if !whole {
			if len(l.buffer) > maxLine {
				return 0, fmt.Errorf("a line of more than %d bytes", maxLine)
			}
			return len(text), nil
		}
		l.buffer = rest
		var decoded consoleapi.Line
		if err := json.Unmarshal(line, &decoded); err != nil {
			return 0, fmt.Errorf("read the agent's answer %.100q: %w", line, err)
		}
		l.handle(decoded)
	}
}
