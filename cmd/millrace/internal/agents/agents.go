// SPDX-License-Identifier: Apache-2.0

// Package agents asks the agents of many nodes at once for the lines of package
// inspect.
package agents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/millrace-lb/millrace/api/inspect"
)

// Runner runs the agent's program on a node; see cluster.Agents. It writes nothing
// to out after it has returned.
type Runner interface {
	Run(ctx context.Context, node string, args []string, out io.Writer) error
}

// Answer is a line from a node, or its end.
type Answer struct {
	Node string
	Line inspect.Line
	// Ended says that the node tells no more, Err why where it was not asked to.
	Ended bool
	Err   error
}

// ErrEnded means that an agent stopped telling, as when it is restarted.
var ErrEnded = errors.New("the agent ended")

// Follow runs a command on all nodes and sends what they tell, until each has
// ended and the channel is closed. After ctx is done a node ends without an error.
func Follow(ctx context.Context, runner Runner, nodes, args []string) <-chan Answer {
	answers := make(chan Answer)
	var group sync.WaitGroup
	for _, node := range nodes {
		group.Go(func() {
			out := &lines{each: func(line inspect.Line) { answers <- Answer{Node: node, Line: line} }}
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
func Ask(ctx context.Context, runner Runner, node string, args []string) (inspect.Line, error) {
	var answer inspect.Line
	answered := false
	out := &lines{each: func(line inspect.Line) { answer, answered = line, true }}
	if err := runner.Run(ctx, node, args, out); err != nil {
		return inspect.Line{}, err
	}
	if !answered {
		return inspect.Line{}, errors.New("the agent tells nothing: it may be of an older version")
	}
	return answer, nil
}

// maxLine is the bytes of the longest line: the counters of all frontends.
const maxLine = 64 << 20

// lines decodes what is written, line by line.
type lines struct {
	rest []byte
	each func(inspect.Line)
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
		var decoded inspect.Line
		if err := json.Unmarshal(line, &decoded); err != nil {
			return 0, fmt.Errorf("read the agent's answer %.100q: %w", line, err)
		}
		l.each(decoded)
	}
}
