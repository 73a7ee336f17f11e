// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"

	"github.com/millrace-lb/millrace/lbagent/internal/source"
)

// reading is the work of a Source, which begins before there are workers.
type reading struct {
	cancel context.CancelFunc
	// ended is closed when err says how it ended.
	ended chan struct{}
	err   error
}

// read has the objects watched until end is called: those who give their routes away when ctx is
// done go by them.
func read(ctx context.Context, objects *source.Source) *reading {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &reading{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = objects.Run(ctx)
	}()
	return r
}

// wait returns when the reading or ctx has ended, and how.
func (r *reading) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.ended:
		return r.err
	}
}

// end ends the reading, and returns when it has.
func (r *reading) end() {
	r.cancel()
	<-r.ended
}
