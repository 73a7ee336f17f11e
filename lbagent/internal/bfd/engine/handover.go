// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
)

// confirmInterval is the polling interval for the peers' confirmations.
const confirmInterval = 10 * time.Millisecond

// Saved is a session for the next process.
type Saved struct {
	Peer    control.Peer
	Session bfd.Saved
}

type handover struct {
	saved []Saved
	// confirmed is true once all peers confirmed the detection time.
	confirmed bool
}

// HandOver requests the detection time from all peers, waits until they confirmed it or ctx is done, and
// returns the established sessions. Run must be running.
func (e *Engine) HandOver(ctx context.Context, detectionTime time.Duration) []Saved {
	e.stretch.Store(int64(detectionTime))
	ticker := time.NewTicker(confirmInterval)
	defer ticker.Stop()
	for {
		e.interrupt()
		last := e.handover.Load()
		if last != nil && last.confirmed {
			return last.saved
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			if last == nil {
				return nil
			}
			return last.saved
		}
	}
}

func (e *Engine) handOver() {
	detectionTime := time.Duration(e.stretch.Load())
	if detectionTime == 0 {
		return
	}
	h := &handover{confirmed: true}
	for _, s := range e.sessions {
		if !e.stretched {
			s.RequestDetectionTime(detectionTime)
		}
		h.confirmed = h.confirmed && s.IsConfirmed()
		if state, up := s.Save(); up {
			h.saved = append(h.saved, Saved{s.peer, state})
		}
	}
	e.stretched = true
	slices.SortFunc(h.saved, func(a, b Saved) int { return strings.Compare(a.Peer.Name, b.Peer.Name) })
	e.handover.Store(h)
}

// Resume adds the sessions of a previous process. It must be called before Set and Run.
func (e *Engine) Resume(saved []Saved) error {
	if len(saved) > MaxSessions {
		return fmt.Errorf("%d sessions were saved, %d are possible", len(saved), MaxSessions)
	}
	for _, one := range saved {
		d := one.Session.Discriminator
		if _, taken := e.discriminator[d]; taken || d == 0 || one.Session.Parameters.DetectMultiplier == 0 {
			return fmt.Errorf("LBPeer %s: its saved session is invalid", one.Peer.Name)
		}
		if err := e.add(one.Peer, bfd.Resume(one.Session, rand.Float64, time.Now())); err != nil {
			return err
		}
	}
	return nil
}
