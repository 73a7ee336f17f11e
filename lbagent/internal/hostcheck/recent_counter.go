// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

const (
	recentEvery  = 10 * time.Second
	recentWindow = 10 * time.Minute
)

// recentCounter reports whether a counter of drops has increased within recentWindow.
type recentCounter struct {
	// reported is the value for the next report.
	reported atomic.Bool

	count uint64
	known bool
	until time.Time
}

func (o *recentCounter) observe(count uint64, now time.Time) (changed bool) {
	if o.known && count > o.count {
		o.until = now.Add(recentWindow)
	}
	o.count, o.known = count, true
	recent := now.Before(o.until)
	return o.reported.Swap(recent) != recent
}

func (o *recentCounter) run(ctx context.Context, read func() (uint64, error), changed func(), logger logr.Logger) error {
	return watchCounter(ctx, func() (bool, error) {
		count, err := read()
		return err == nil && o.observe(count, time.Now()), err
	}, changed, logger)
}

func watchCounter(ctx context.Context, look func() (bool, error), changed func(), logger logr.Logger) error {
	return watchEvery(ctx, recentEvery, look, changed, logger)
}

func watchEvery(
	ctx context.Context, pause time.Duration, look func() (bool, error), changed func(), logger logr.Logger,
) error {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		if different, err := look(); err != nil {
			logger.Error(err, "A check of the node failed; will retry", "after", pause)
		} else if different {
			changed()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
