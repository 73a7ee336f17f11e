// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"

	"github.com/millrace-lb/millrace/lbagent/internal/source"
)

// runningSource is a running Source, started before the workers.
type runningSource struct {
	cancel context.CancelFunc
	// done is closed after err is set.
	done chan struct{}
	err  error
}

// startSource watches objects until stop is called, independent of ctx, because the handover at shutdown
// needs them.
func startSource(ctx context.Context, objects *source.Source) *runningSource {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &runningSource{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = objects.Run(ctx)
	}()
	return r
}

func (r *runningSource) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.done:
		return r.err
	}
}

func (r *runningSource) stop() {
	r.cancel()
	<-r.done
}
