// SPDX-License-Identifier: Apache-2.0

// Package freshness delays announcements after a disconnection until the objects are current. Watches
// recover later than BGP: client-go detects a dead connection after 45 seconds and backs off for up to a
// minute, in which a removed VIP would be announced again.
package freshness

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/checkpoint"
)

// goodFor is how long confirmed objects count as current, less than the shortest hold time (RFC 4271,
// section 4.2).
const goodFor = 2 * time.Second

// Gate delays announcements.
type Gate struct {
	confirm, pass func(ctx context.Context) error
	logger        logr.Logger

	turn chan time.Time
}

// New returns a Gate. confirm returns once the caches are current, pass once a pass has applied them.
func New(confirm, pass func(ctx context.Context) error, logger logr.Logger) *Gate {
	g := &Gate{confirm: confirm, pass: pass, logger: logger, turn: make(chan time.Time, 1)}
	g.turn <- time.Time{}
	return g
}

// Begin marks the objects as current.
func (g *Gate) Begin() {
	<-g.turn
	g.turn <- time.Now()
}

// Wait returns when routes may be announced: with objects confirmed less than goodFor ago, or with the
// existing ones if the API server does not answer in time, because announcements must survive its outage.
func (g *Gate) Wait(ctx context.Context) {
	var asked time.Time
	select {
	case <-ctx.Done():
		return
	case asked = <-g.turn:
	}
	defer func() { g.turn <- asked }()
	if ctx.Err() != nil || time.Since(asked) < goodFor {
		return
	}
	limited, cancel := context.WithTimeout(ctx, checkpoint.Patience)
	defer cancel()
	began := time.Now()
	err := g.confirm(limited)
	if err == nil {
		err = g.pass(limited)
	}
	if ctx.Err() != nil {
		return
	}
	asked = time.Now()
	if err != nil {
		g.logger.Error(err, "A router is told of routes by objects that may be old: the API server was asked in vain", "for", time.Since(began))
	}
}
