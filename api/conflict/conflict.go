// SPDX-License-Identifier: Apache-2.0

// Package conflict detects another controller that writes the same status, because each would overwrite the
// other forever. After Overwrites overwrites within Window, the status is contested: it is written at most
// once per Pause, until it remains unchanged for one Pause.
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

// Detector detects overwrites of one status of type T. It is not safe for concurrent use.
type Detector[T any] struct {
	// isOurs reports whether a status equals the last one that was written or found correct. It is nil after
	// an overwrite.
	isOurs      func(T) bool
	overwritten []time.Time
	// on is true while the status is contested; written is the time of our last write since then.
	on      bool
	written time.Time
}

// Contested reports whether the status is contested.
func (c *Detector[T]) Contested() bool { return c.on }

// Observe records the current status and returns the time until the next write is allowed.
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

// Left returns the remaining time of the pause after our last write.
func (c *Detector[T]) Left(now time.Time) time.Duration {
	if !c.on || c.written.IsZero() {
		return 0
	}
	return max(0, min(Pause, c.written.Add(Pause).Sub(now)))
}

// Found records that the present status is correct and needs no write; isOurs reports whether a later status
// equals it.
func (c *Detector[T]) Found(isOurs func(T) bool) { c.isOurs = isOurs }

// RecordWrite records a write of the status; isOurs reports whether a later status equals the written one.
func (c *Detector[T]) RecordWrite(isOurs func(T) bool, now time.Time) {
	c.isOurs = isOurs
	if c.on {
		c.written = now
	}
}
