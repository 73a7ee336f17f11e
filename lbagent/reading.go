// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"

	"github.com/millrace-lb/millrace/lbagent/internal/source"
)

// reading is a running Source, started before the workers.
type reading struct {
	cancel context.CancelFunc
	// ended is closed after err is set.
	ended chan struct{}
	err   error
}

// read watches objects until end is called, independent of ctx, because the handover at shutdown needs them.
func read(ctx context.Context, objects *source.Source) *reading {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &reading{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = objects.Run(ctx)
	}()
	return r
}

func (r *reading) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.ended:
		return r.err
	}
}

func (r *reading) end() {
	r.cancel()
	<-r.ended
}
