// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

type scripted struct {
	text  string
	piece int
	err   error
}

func (s scripted) Run(_ context.Context, _ string, _ []string, out io.Writer) error {
	for rest := s.text; rest != ""; {
		n := min(s.piece, len(rest))
		if _, err := io.WriteString(out, rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return s.err
}

func TestLinesInFragments(t *testing.T) {
	const text = `{"missed":1}` + "\n" + `{"missed":20,"later":true}` + "\n" + `{"missed":300}` + "\n"
	for _, piece := range []int{1, 7, 1000} {
		var got []uint64
		var last Response
		for response := range Follow(t.Context(), scripted{text: text, piece: piece}, []string{"node1"}, nil) {
			if last = response; !response.Ended {
				got = append(got, response.Line.Missed)
			}
		}
		if len(got) != 3 || got[0] != 1 || got[1] != 20 || got[2] != 300 {
			t.Errorf("pieces of %d: %v", piece, got)
		}
		if !last.Ended || !errors.Is(last.Err, ErrEnded) {
			t.Errorf("pieces of %d: the last answer is %+v", piece, last)
		}
	}
}

func TestQuery(t *testing.T) {
	failure := errors.New("no pod")
	for name, test := range map[string]struct {
		runner scripted
		want   consoleapi.Line
		err    string
	}{
		"answer":  {scripted{text: `{"missed":4}` + "\n", piece: 5}, consoleapi.Line{Missed: 4}, ""},
		"failure": {scripted{err: failure}, consoleapi.Line{}, "no pod"},
		"nothing": {scripted{}, consoleapi.Line{}, "did not answer"},
		"rubbish": {scripted{text: "panic: oh\n", piece: 5}, consoleapi.Line{}, `"panic: oh"`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Query(t.Context(), test.runner, "node1", nil)
			if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// A requested end is not an error.
func TestEndWhenDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for response := range Follow(ctx, scripted{err: context.Canceled}, []string{"node1", "node2"}, nil) {
		if !response.Ended || response.Err != nil {
			t.Errorf("%+v", response)
		}
	}
}

// agents do not end before MaxConcurrent of them run; they record the maximum.
type agents struct {
	text string
	ends bool

	mu            sync.Mutex
	running, most int
	full          chan struct{}
}

func (c *agents) Run(ctx context.Context, _ string, _ []string, out io.Writer) error {
	c.mu.Lock()
	if c.full == nil {
		c.full = make(chan struct{})
	}
	c.running++
	c.most = max(c.most, c.running)
	full := c.full
	if c.running == MaxConcurrent {
		close(full)
		c.full, c.running = nil, 0
	}
	c.mu.Unlock()
	select {
	case <-full:
	case <-ctx.Done():
		return ctx.Err()
	}
	if _, err := io.WriteString(out, c.text); err != nil || c.ends {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func names(count int) []string {
	var nodes []string
	for n := range count {
		nodes = append(nodes, fmt.Sprintf("node%d", n))
	}
	return nodes
}

func TestRoundIsBounded(t *testing.T) {
	c := &agents{text: `{"missed":1}` + "\n", ends: true}
	responses := Batch{Runner: c, Limit: time.Minute}.Query(t.Context(), names(4*MaxConcurrent), nil)
	if len(responses) != 4*MaxConcurrent {
		t.Errorf("%d answers", len(responses))
	}
	for node, response := range responses {
		if response.Err != nil || response.Line.Missed != 1 {
			t.Errorf("%s: %+v", node, response)
		}
	}
}

func TestBounded(t *testing.T) {
	c := &agents{text: strings.Repeat(`{"missed":1}`+"\n", 3)}
	lines := map[string]int{}
	for response := range Follow(t.Context(), Bounded(c, 2), names(4*MaxConcurrent), nil) {
		if !response.Ended {
			lines[response.Node]++
		} else if !errors.Is(response.Err, ErrEnded) {
			t.Errorf("%s: %v", response.Node, response.Err)
		}
	}
	if len(lines) != 4*MaxConcurrent {
		t.Errorf("%d nodes", len(lines))
	}
	for node, count := range lines {
		if count != 2 {
			t.Errorf("%s: %d lines, want 2", node, count)
		}
	}
}

type counted struct {
	running, most, runs atomic.Int32
	err                 error
	hold                time.Duration
}

func (c *counted) Run(ctx context.Context, _ string, _ []string, out io.Writer) error {
	now := c.running.Add(1)
	defer c.running.Add(-1)
	c.runs.Add(1)
	for most := c.most.Load(); now > most && !c.most.CompareAndSwap(most, now); most = c.most.Load() {
	}
	if c.hold > 0 {
		select {
		case <-time.After(c.hold):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if c.err != nil {
		return c.err
	}
	_, err := io.WriteString(out, `{"missed":1}`+"\n")
	return err
}

func TestNotMoreAtOnce(t *testing.T) {
	c := &counted{hold: time.Millisecond}
	Batch{Runner: c, Limit: time.Minute}.Query(t.Context(), names(200), nil)
	if c.most.Load() > MaxConcurrent || c.runs.Load() != 200 {
		t.Errorf("%d of %d at once, want at most %d", c.most.Load(), c.runs.Load(), MaxConcurrent)
	}
	c = &counted{hold: time.Millisecond}
	for range Follow(t.Context(), Bounded(c, 1), names(200), nil) {
	}
	if c.most.Load() > MaxConcurrent || c.runs.Load() != 200 {
		t.Errorf("followed %d of %d at once, want at most %d", c.most.Load(), c.runs.Load(), MaxConcurrent)
	}
}

func TestRoundStops(t *testing.T) {
	refused := errors.New("refused")
	c := &counted{err: refused}
	responses := Batch{Runner: c, Limit: time.Minute, Stop: refused}.Query(t.Context(), names(500), nil)
	if runs := c.runs.Load(); runs > 2*MaxConcurrent || len(responses) != 500 || !errors.Is(responses["node499"].Err, refused) {
		t.Errorf("%d agents queried, %d answers, the last %+v", runs, len(responses), responses["node499"])
	}
}

func TestRoundLimit(t *testing.T) {
	responses := Batch{Runner: &counted{hold: time.Hour}, Limit: time.Millisecond}.Query(t.Context(), names(3), nil)
	for node, response := range responses {
		if response.Err == nil || response.Err.Error() != "no answer within 1ms" {
			t.Errorf("%s: %v", node, response.Err)
		}
	}
}

func TestRestAfter(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: 2 * time.Second, 100 * time.Millisecond: 2 * time.Second, 3 * time.Second: 27 * time.Second, time.Hour: time.Minute,
	} {
		if got := PauseAfter(took); got != want {
			t.Errorf("after a round of %s: %s, want %s", took, got, want)
		}
	}
}
