// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"io"
	"sync/atomic"
	"testing"
)

type slow struct {
	entered, leave chan struct{}
	inside         atomic.Bool
	writes         atomic.Int32
}

func (s *slow) Write(text []byte) (int, error) {
	s.writes.Add(1)
	s.inside.Store(true)
	s.entered <- struct{}{}
	<-s.leave
	s.inside.Store(false)
	return len(text), nil
}

// After shut returns, the underlying writer may be destroyed.
func TestGateBlocks(t *testing.T) {
	out := &slow{entered: make(chan struct{}), leave: make(chan struct{})}
	g := &closableWriter{out: out}
	written := make(chan error, 1)
	go func() {
		_, err := io.WriteString(g, "first")
		written <- err
	}()
	<-out.entered
	shut := make(chan bool)
	go func() {
		g.close()
		shut <- out.inside.Load()
	}()
	close(out.leave)
	if <-shut {
		t.Error("shut while something was being written")
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(g, "second"); !errors.Is(err, io.ErrClosedPipe) || out.writes.Load() != 1 {
		t.Errorf("after it was shut: %v, %d writes", err, out.writes.Load())
	}
}
