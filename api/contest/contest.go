// SPDX-License-Identifier: Apache-2.0

// Package contest tells when another program writes a status that we write, too. Each answers a write
// of the other, for ever, unless one of them waits. After Answers of them within Window a status is
// contested: then it is to be written once in Pause, until one such pause has passed in peace.
//
// The operator has a Contest for the status of each Service, the gateway's controller for those of
// Ingresses, Gateways and routes.
package contest

import (
	"slices"
	"time"
)

const (
	// Answers is after how many writes of another program within Window a status is contested.
	Answers = 3
	// Window is how far apart they are at most.
	Window = 10 * time.Second
	// Pause is how long a contested status is left as another program wrote it.
	Pause = 30 * time.Second
)

// Contest is what is known of who writes one status. T is what is observed of it. The zero value is a
// status that was never written. It is for one goroutine at a time.
type Contest[T any] struct {
	// isOurs reports whether a status is as we wrote, or found it, last; nil once somebody has
	// overwritten it.
	isOurs func(T) bool
	// overwritten is when that happened, in the last Window.
	overwritten []time.Time
	// on says that the status is contested; written is when we wrote it last since then.
	on      bool
	written time.Time
}

// Contested reports whether the status is contested.
func (c *Contest[T]) Contested() bool { return c.on }

// Observe takes note of the present status, and returns for how long it is not to be written.
func (c *Contest[T]) Observe(present T, now time.Time) (pause time.Duration) {
	switch {
	case c.isOurs != nil && !c.isOurs(present):
		c.isOurs = nil
		c.overwritten = append(slices.DeleteFunc(c.overwritten, func(at time.Time) bool { return now.Sub(at) > Window }), now)
		c.on = c.on || len(c.overwritten) >= Answers
	case c.on && c.isOurs != nil && c.Left(now) == 0:
		c.on, c.overwritten, c.written = false, nil, time.Time{}
	}
	return c.Left(now)
}

// Left is what is left of the pause after our last write.
func (c *Contest[T]) Left(now time.Time) time.Duration {
	if !c.on || c.written.IsZero() {
		return 0
	}
	return max(0, min(Pause, c.written.Add(Pause).Sub(now)))
}

// Found takes note of a status that is right without a write. isOurs reports whether another one is
// as right.
func (c *Contest[T]) Found(isOurs func(T) bool) { c.isOurs = isOurs }

// Wrote takes note of a write, after which isOurs holds for the status.
func (c *Contest[T]) Wrote(isOurs func(T) bool, now time.Time) {
	c.isOurs = isOurs
	if c.on {
		c.written = now
	}
}
