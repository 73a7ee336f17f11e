// SPDX-License-Identifier: Apache-2.0

// Package freshness has no router told of routes by objects from before it was lost.
//
// What cuts a node off from its routers, or stops its agent, often does the same to its watches of the
// API server, and these come back later: client-go finds a dead connection after 45 seconds, and waits
// for up to a minute then. A VIP that was removed meanwhile would be announced again until then.
package freshness

import (
	"context"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/checkpoint"
)

// goodFor is for how long objects count as new once they were: less than the shortest hold time, after
// which a router forgets routes (RFC 4271, section 4.2).
const goodFor = 2 * time.Second

// Gate holds up who is about to announce.
type Gate struct {
	confirm, pass func(ctx context.Context) error
	logger        logr.Logger

	// turn has the time when the API server was asked last. Who asks it has taken that.
	turn chan time.Time
}

// New returns a Gate. confirm returns once the API server's objects are known as they are, and pass
// once what follows from them has been set.
func New(confirm, pass func(ctx context.Context) error, logger logr.Logger) *Gate {
	g := &Gate{confirm: confirm, pass: pass, logger: logger, turn: make(chan time.Time, 1)}
	g.turn <- time.Time{}
	return g
}

// Begin says that the objects are those to begin with.
func (g *Gate) Begin() {
	<-g.turn
	g.turn <- time.Now()
}

// Wait returns when routes may be announced: by objects of the API server that are less than goodFor
// old, or by those that there are when it has not answered in time. Announcements outlive the API
// server.
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
