// SPDX-License-Identifier: Apache-2.0

package duplicate

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

const (
	// window is how long hosts have to answer. The kernel sends a second request after one second.
	window = 1500 * time.Millisecond
	// batch is the number of concurrent probes. Each needs a neighbour table entry, and the kernel's
	// default is 1024.
	batch     = 128
	heldAgain = 5 * time.Second
	// freeAgain is the minimum interval of probes for a free address. Each probe is a broadcast, so a node
	// sends one per leastTurn, and nodes together about ten a second at most.
	freeAgain   = time.Minute
	leastTurn   = time.Second
	turnForNode = 100 * time.Millisecond
)

// Wanted is a question to repeat.
type Wanted struct {
	Question
	// Created is the creation time of the VIP. A VIP created again with the same address is probed again.
	Created time.Time
	Urgent  bool
}

type schedule struct {
	wanted []Wanted
	asked  map[Question]asked
	turn   time.Duration
	turned time.Time
}

type asked struct {
	at time.Time
	Answer
}

// want replaces the questions; answers later than since are kept.
func (s *schedule) want(wanted []Wanted, nodes int, since map[Question]time.Time) {
	kept := make(map[Question]asked, len(wanted))
	for i := range wanted {
		if answer, found := s.asked[wanted[i].Question]; found && !answer.at.Before(since[wanted[i].Question]) {
			kept[wanted[i].Question] = answer
		}
	}
	s.wanted, s.asked, s.turn = wanted, kept, max(leastTurn, time.Duration(nodes)*turnForNode)
}

// due returns the next batch of questions, or the delay until one is due, or 0. New
// questions come first, then addresses that a host uses.
func (s *schedule) due(now time.Time) (questions []Question, wait time.Duration) {
	var oldest *Wanted
	var oldestAt time.Time
	for i := range s.wanted {
		wanted := &s.wanted[i]
		last, found := s.asked[wanted.Question]
		if held := len(last.HardwareAddr) > 0; held || !found && wanted.Urgent {
			if left := last.at.Add(heldAgain).Sub(now); held && left > 0 {
				wait = wake.Soonest(wait, left)
				continue
			}
			questions = append(questions, wanted.Question)
			continue
		}
		if oldest == nil || last.at.Before(oldestAt) {
			oldest, oldestAt = wanted, last.at
		}
	}
	slices.SortStableFunc(questions, func(a, b Question) int { return cmp.Compare(s.urgency(a), s.urgency(b)) })
	if len(questions) > batch {
		return questions[:batch], 0
	}
	if oldest != nil {
		left := max(oldestAt.Add(freeAgain).Sub(now), s.turned.Add(s.turn).Sub(now))
		if left <= 0 {
			s.turned = now
			return append(questions, oldest.Question), 0
		}
		wait = wake.Soonest(wait, left)
	}
	if len(questions) > 0 {
		return questions, 0
	}
	return nil, wait
}

func (s *schedule) urgency(question Question) int {
	if _, found := s.asked[question]; !found {
		return 0
	}
	return 1
}

func (s *schedule) answer(questions []Question, answers map[Question]Answer, now time.Time) {
	for _, question := range questions {
		s.asked[question] = asked{at: now, Answer: answers[question]}
	}
}
