// SPDX-License-Identifier: Apache-2.0

// Package cachesync delays announcements after a disconnection until the objects are current. Watches
// recover later than BGP: client-go detects a dead connection after 45 seconds and backs off for up to a
// minute, in which a removed VIP would be announced again.
package cachesync

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/checkpoint"
)

// maxAge is how long confirmed objects count as current, less than the shortest hold time (RFC 4271,
// section 4.2).
const maxAge = 2 * time.Second

// Gate delays announcements.
type Gate struct {
	confirm, pass func(ctx context.Context) error
	logger        logr.Logger

	lastConfirmed chan time.Time
}

// New returns a Gate. confirm returns once the caches are current, pass once a pass has applied them.
func New(confirm, pass func(ctx context.Context) error, logger logr.Logger) *Gate {
	g := &Gate{confirm: confirm, pass: pass, logger: logger, lastConfirmed: make(chan time.Time, 1)}
	g.lastConfirmed <- time.Time{}
	return g
}

// MarkCurrent marks the objects as current.
func (g *Gate) MarkCurrent() {
	<-g.lastConfirmed
	g.lastConfirmed <- time.Now()
}

// Wait returns when routes may be announced: with objects confirmed less than maxAge ago, or with the
// existing ones if the API server does not answer in time, because announcements must survive its outage.
func (g *Gate) Wait(ctx context.Context) {
	var confirmed time.Time
	select {
	case <-ctx.Done():
		return
	case confirmed = <-g.lastConfirmed:
	}
	defer func() { g.lastConfirmed <- confirmed }()
	if ctx.Err() != nil || time.Since(confirmed) < maxAge {
		return
	}
	limited, cancel := context.WithTimeout(ctx, checkpoint.StartTimeout)
	defer cancel()
	began := time.Now()
	err := g.confirm(limited)
	if err == nil {
		err = g.pass(limited)
	}
	if ctx.Err() != nil {
		return
	}
	confirmed = time.Now()
	if err != nil {
		g.logger.Error(err, "Announcing routes from objects that may be stale: no response from the API server", "for", time.Since(began))
	}
}
