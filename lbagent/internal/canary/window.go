// SPDX-License-Identifier: Apache-2.0

// Package canary probes canaries through routers, each from 64 ports. The XDP program of the node that
// the router has selected answers (bpf/src/probe.h).
package canary

import (
	"maps"

	"github.com/millrace-lb/millrace/api/canary"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

const (
	// maxMisses is the number of rounds without an answer after which a port counts as unanswered and a node
	// as not reached. A route that a session reset removes returns earlier.
	maxMisses = 4
	// longEvery is the interval of ports that also send long probes.
	longEvery = 4
	// settleRounds is the number of rounds after which an announcement may be expected to be effective at the
	// router.
	settleRounds = 6
)

type port struct {
	nonce, long uint64
	// node is the last node that answered. missed and longMissed count unanswered rounds since.
	node               forwarding.NodeID
	missed, longMissed int
}

type window struct {
	ports [canary.Ports]port
	// rounds counts ended rounds, announced the latest consecutive rounds in which the node announced the
	// canary.
	rounds, announced int
	// lastAnswer maps reached nodes to the round of their last answer.
	lastAnswer map[forwarding.NodeID]int
}

func (w *window) probed(at int, nonce, long uint64) {
	w.ports[at].nonce, w.ports[at].long = nonce, long
}

// answered processes an answer, and reports whether it belongs to this round.
func (w *window) answered(at int, nonce uint64, node forwarding.NodeID) bool {
	p := &w.ports[at]
	switch nonce {
	case 0:
		return false
	case p.nonce:
		p.nonce, p.node, p.missed = 0, node, 0
		if w.lastAnswer == nil {
			w.lastAnswer = map[forwarding.NodeID]int{}
		}
		w.lastAnswer[node] = w.rounds
	case p.long:
		p.long, p.longMissed = 0, 0
	default:
		return false
	}
	return true
}

func (w *window) end(announced bool) {
	for i := range w.ports {
		p := &w.ports[i]
		if p.nonce != 0 {
			p.missed++
		}
		// If the short probe is lost, too, the length is not the cause.
		if p.long != 0 && p.nonce == 0 {
			p.longMissed++
		}
		p.nonce, p.long = 0, 0
	}
	maps.DeleteFunc(w.lastAnswer, func(_ forwarding.NodeID, last int) bool { return w.rounds-last >= maxMisses })
	w.rounds++
	w.announced++
	if !announced {
		w.announced = 0
	}
}

// Result is the result for a canary through a router.
type Result struct {
	Announced bool
	Known     bool
	// Reached are the nodes that answered in the last rounds, Short the ones that answered short probes
	// only.
	Reached, Short map[int32]bool
	Unanswered     int32
}

func (w *window) result() Result {
	r := Result{Announced: w.announced >= settleRounds, Known: w.rounds >= settleRounds, Reached: map[int32]bool{}, Short: map[int32]bool{}}
	for node := range w.lastAnswer {
		r.Reached[int32(node)] = true
	}
	unanswered := 0
	for i := range w.ports {
		p := &w.ports[i]
		if p.missed >= maxMisses || p.node == 0 {
			unanswered++
			continue
		}
		if p.longMissed >= maxMisses {
			r.Short[int32(p.node)] = true
		}
	}
	r.Unanswered = int32(unanswered)
	return r
}
