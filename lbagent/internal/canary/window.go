// SPDX-License-Identifier: Apache-2.0

// Package canary probes canaries through routers, each from 64 ports. The XDP program of the node
// that the router chose answers (bpf/src/probe.h).
package canary

import (
	"maps"

	"github.com/millrace-lb/millrace/api/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

const (
	// misses are after how many rounds without an answer a port has none, and a node is reached no
	// more. A route that a session's reset takes away is back before.
	misses = 4
	// longEvery is every how manieth port long probes leave from, too.
	longEvery = 4
	// settled is after how many rounds what is announced may be expected at the router.
	settled = 6
)

// port is what one port knows of the last rounds.
type port struct {
	// nonce and long are those of this round's probes; zero where answered.
	nonce, long uint64
	// node answered last. missed and longMissed count rounds since.
	node               forwarding.NodeID
	missed, longMissed int
}

// window is what probes to one canary through one router told in the last rounds.
type window struct {
	ports [canary.Ports]port
	// rounds are those that have ended since the window was begun, announced those during which the
	// node announced the canary without a break.
	rounds, announced int
	// heard are the rounds in which nodes answered last, of those that are reached.
	heard map[forwarding.NodeID]int
}

// probed begins the round of a port. long is zero where no long probe leaves.
func (w *window) probed(at int, nonce, long uint64) {
	w.ports[at].nonce, w.ports[at].long = nonce, long
}

// answered takes an answer in, and reports whether it is one of this round.
func (w *window) answered(at int, nonce uint64, node forwarding.NodeID) bool {
	p := &w.ports[at]
	switch nonce {
	case 0:
		return false
	case p.nonce:
		p.nonce, p.node, p.missed = 0, node, 0
		if w.heard == nil {
			w.heard = map[forwarding.NodeID]int{}
		}
		w.heard[node] = w.rounds
	case p.long:
		p.long, p.longMissed = 0, 0
	default:
		return false
	}
	return true
}

// end ends a round.
func (w *window) end(announced bool) {
	for i := range w.ports {
		p := &w.ports[i]
		if p.nonce != 0 {
			p.missed++
		}
		// Where the short one is lost, too, the length is no reason.
		if p.long != 0 && p.nonce == 0 {
			p.longMissed++
		}
		p.nonce, p.long = 0, 0
	}
	maps.DeleteFunc(w.heard, func(_ forwarding.NodeID, last int) bool { return w.rounds-last >= misses })
	w.rounds++
	w.announced++
	if !announced {
		w.announced = 0
	}
}

// Result is what is known of a canary through a router.
type Result struct {
	Announced bool
	// Known is false until enough rounds have ended.
	Known bool
	// Reached answered in the last rounds, Short answered short probes alone.
	Reached, Short map[int32]bool
	// Unanswered is how many ports have no answers.
	Unanswered int32
}

func (w *window) result() Result {
	r := Result{Announced: w.announced >= settled, Known: w.rounds >= settled, Reached: map[int32]bool{}, Short: map[int32]bool{}}
	for node := range w.heard {
		r.Reached[int32(node)] = true
	}
	unanswered := 0
	for i := range w.ports {
		p := &w.ports[i]
		if p.missed >= misses || p.node == 0 {
			unanswered++
			continue
		}
		if p.longMissed >= misses {
			r.Short[int32(p.node)] = true
		}
	}
	r.Unanswered = int32(unanswered)
	return r
}
