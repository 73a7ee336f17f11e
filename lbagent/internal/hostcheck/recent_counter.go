// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

const (
	// recentEvery is how often the counter is read.
	recentEvery = 10 * time.Second
	// recentFor is how long a drop is told after the last one.
	recentFor = 10 * time.Minute
)

// recentCounter reports whether a counter of drops grew in the last minutes.
type recentCounter struct {
	// told is what the next report says.
	told atomic.Bool

	count uint64
	known bool
	until time.Time
}

// observe takes in the counter, and reports whether there is something else to tell. What was
// counted before the first time is old.
func (o *recentCounter) observe(count uint64, now time.Time) (changed bool) {
	if o.known && count > o.count {
		o.until = now.Add(recentFor)
	}
	o.count, o.known = count, true
	recent := now.Before(o.until)
	return o.told.Swap(recent) != recent
}

// run reads the counter until ctx is done, and calls changed when there is something to tell.
func (o *recentCounter) run(ctx context.Context, read func() (uint64, error), changed func(), logger logr.Logger) error {
	return watchCounter(ctx, func() (bool, error) {
		count, err := read()
		return err == nil && o.observe(count, time.Now()), err
	}, changed, logger)
}

// watchCounter looks again and again until ctx is done, and calls changed when look says so.
func watchCounter(ctx context.Context, look func() (bool, error), changed func(), logger logr.Logger) error {
	return watchEvery(ctx, recentEvery, look, changed, logger)
}

// watchEvery does so with a pause between.
func watchEvery(
	ctx context.Context, pause time.Duration, look func() (bool, error), changed func(), logger logr.Logger,
) error {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		if different, err := look(); err != nil {
			logger.Error(err, "The node is not known in part; will look again", "after", pause)
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
