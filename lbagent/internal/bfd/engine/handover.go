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

// settleInterval is how often it is looked whether peers have agreed.
const settleInterval = 10 * time.Millisecond

// Saved is a session that the next process goes on with.
type Saved struct {
	Peer    control.Peer
	Session bfd.Saved
}

// HandOver asks the peers to wait for so long, until they all agreed or ctx is done, and
// returns the sessions that are up. Run must go on meanwhile.
func (e *Engine) HandOver(ctx context.Context, detectionTime time.Duration) []Saved {
	e.each(func(s *session) { s.Stretch(detectionTime) })
	e.interrupt()
	ticker := time.NewTicker(settleInterval)
	defer ticker.Stop()
	for {
		settled := true
		e.each(func(s *session) { settled = settled && s.Settled() })
		if settled {
			break
		}
		select {
		case <-ticker.C:
			continue
		case <-ctx.Done():
		}
		break
	}
	var saved []Saved
	e.each(func(s *session) {
		if state, up := s.Save(); up {
			saved = append(saved, Saved{s.peer, state})
		}
	})
	slices.SortFunc(saved, func(a, b Saved) int { return strings.Compare(a.Peer.Name, b.Peer.Name) })
	return saved
}

func (e *Engine) each(act func(*session)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.sessions {
		act(s)
	}
}

// Resume goes on with the sessions of a process before. It is called before Set and Run.
func (e *Engine) Resume(saved []Saved) error {
	e.mu.Lock()
	defer e.mu.Unlock()
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
