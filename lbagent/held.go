// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/readiness"
	"github.com/millrace-lb/millrace/lbagent/internal/removalguard"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

// heldObjects are the objects to work by, with those whose removal is held, and after how long
// there may be others.
func (l *loop) heldObjects(now time.Time) (*model.Snapshot, time.Duration) {
	objects, unready := l.readyObjects(now)
	if l.guard == nil {
		return objects, unready
	}
	objects, held, again := l.guard.Advance(objects, now)
	l.logHeld(held)
	l.observation.Held = held
	return objects, wake.Soonest(again, unready)
}

// readyObjects are the objects with the endpoints as ready ones that are served though they are not
// ready. Without probes nothing tells that it is Kubernetes which is wrong about them.
func (l *loop) readyObjects(now time.Time) (*model.Snapshot, time.Duration) {
	objects := l.objects()
	answers := l.watch.Answers(objects)
	if l.readiness == nil || answers == nil {
		return objects, 0
	}
	result := *objects
	slices, served, again := l.readiness.Advance(objects.EndpointSlices, answers, now)
	result.EndpointSlices = slices
	before := l.observation.Unready
	l.observation.Unready = served
	switch {
	case served.Endpoints > 0 && before.Endpoints == 0:
		l.logger.Info("Most endpoints of most Services turned unready at once, and their nodes answer: the last ready ones are served",
			"endpoints", served.Endpoints, "services", served.Services)
	case served.Endpoints == 0 && before.Endpoints > 0:
		l.logger.Info("No endpoint is served any more that is not ready")
	}
	return &result, again
}

// newReadiness goes on with the endpoints that the agent before served.
func newReadiness(former *model.Snapshot) *readiness.Threshold {
	if former == nil {
		return readiness.New(nil)
	}
	return readiness.New(former.EndpointSlices)
}

func countHeld(held []removalguard.Held) (count int) {
	for _, h := range held {
		count += h.Count
	}
	return count
}

// logHeld tells of kinds that begin or end to be held.
func (l *loop) logHeld(held []removalguard.Held) {
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
