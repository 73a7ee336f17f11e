// SPDX-License-Identifier: Apache-2.0

// Package conflict detects another controller writing the same status, since each would overwrite the other
// forever. After Overwrites overwrites within Window a status is contested, and is written at most once per
// Pause, until no other write occurs during one Pause.
package conflict

import (
	"slices"
	"time"
)

const (
	// Overwrites is the number of overwrites within Window after which a status is contested.
	Overwrites = 3
	// Window is the period in which overwrites are counted.
	Window = 10 * time.Second
	// Pause is the interval between writes of a contested status.
	Pause = 30 * time.Second
)

// Detector tracks the writers of one status, observed as T. It is not safe for concurrent use.
type Detector[T any] struct {
	// isOurs reports whether a status equals the one last written or found; nil after it was overwritten.
	isOurs      func(T) bool
	overwritten []time.Time
	// on is true if the status is contested; written is the time of the last own write since then.
	on      bool
	written time.Time
}

// Contested reports whether the status is contested.
func (c *Detector[T]) Contested() bool { return c.on }

// Observe records the current status, and returns for how long it must not be written.
func (c *Detector[T]) Observe(present T, now time.Time) (pause time.Duration) {
	switch {
	case c.isOurs != nil && !c.isOurs(present):
		c.isOurs = nil
		c.overwritten = append(slices.DeleteFunc(c.overwritten, func(at time.Time) bool { return now.Sub(at) > Window }), now)
		c.on = c.on || len(c.overwritten) >= Overwrites
	case c.on && c.isOurs != nil && c.Left(now) == 0:
		c.on, c.overwritten, c.written = false, nil, time.Time{}
	}
	return c.Left(now)
}

// Left returns the rest of the pause after the last own write.
func (c *Detector[T]) Left(now time.Time) time.Duration {
	if !c.on || c.written.IsZero() {
		return 0
	}
	return max(0, min(Pause, c.written.Add(Pause).Sub(now)))
}

// Found records a status that is correct without a write; isOurs recognizes it.
func (c *Detector[T]) Found(isOurs func(T) bool) { c.isOurs = isOurs }

// RecordWrite records a write, after which isOurs holds for the status.
func (c *Detector[T]) RecordWrite(isOurs func(T) bool, now time.Time) {
	c.isOurs = isOurs
	if c.on {
		c.written = now
	}
}
