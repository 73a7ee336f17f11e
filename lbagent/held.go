// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/hold"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// heldObjects are the objects to work by, with those whose removal is held, and after how long
// there may be others.
func (l *loop) heldObjects(now time.Time) (*model.Snapshot, time.Duration) {
	objects := l.objects()
	if l.hold == nil {
		return objects, 0
	}
	objects, held, again := l.hold.Advance(objects, now)
	l.logHeld(held)
	l.observation.Held = held
	return objects, again
}

func countHeld(held []hold.Held) (count int) {
	for _, h := range held {
		count += h.Count
	}
	return count
}

// logHeld tells of kinds that begin or end to be held.
func (l *loop) logHeld(held []hold.Held) {
	before, present := map[string]bool{}, map[string]bool{}
	for _, h := range l.observation.Held {
		before[h.Kind] = true
	}
	for _, h := range held {
		present[h.Kind] = true
		if !before[h.Kind] {
			l.logger.Info("Objects were removed many at once: they count as present for a while",
				"kind", h.Kind, "objects", h.Count, "until", h.Until)
		}
	}
	for kind := range before {
		if !present[kind] {
			l.logger.Info("No removed objects count as present any more", "kind", kind)
		}
	}
}
