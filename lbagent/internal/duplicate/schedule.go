// SPDX-License-Identifier: Apache-2.0

package duplicate

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

const (
	// window is how long hosts have for an answer. The kernel asks at once, and again after a
	// second.
	window = 1500 * time.Millisecond
	// batch are the questions that are asked at once: each is an entry of the kernel's table of
	// neighbours, which has room for a thousand by default.
	batch = 128
	// heldAgain is how long after an answer a host is asked again: it may have left.
	heldAgain = 5 * time.Second
	// freeAgain is the same where nobody had the address, for one VIP after the other. Each
	// question is a broadcast: a node asks one such every leastTurn, and ten nodes together one
	// every second.
	freeAgain   = time.Minute
	leastTurn   = time.Second
	turnForNode = 100 * time.Millisecond
)

// Wanted is a question that is to be asked again and again.
type Wanted struct {
	Question
	// Created is when the VIP was. Another one of the address is asked for anew.
	Created time.Time
	// Urgent is true where a VIP waits for the answer. The others are asked for the first time in
	// their turn.
	Urgent bool
}

// schedule says what to ask when.
type schedule struct {
	wanted []Wanted
	asked  map[Question]asked
	// turn is the time between two questions for which nobody waits.
	turn time.Duration
	// turned is when a free address was last asked for again.
	turned time.Time
}

type asked struct {
	at time.Time
	Answer
}

// want replaces the questions of one of so many nodes; the answers to those that have been wanted since
// they were asked are kept.
func (s *schedule) want(wanted []Wanted, nodes int, since map[Question]time.Time) {
	kept := make(map[Question]asked, len(wanted))
	for i := range wanted {
		if answer, found := s.asked[wanted[i].Question]; found && !answer.at.Before(since[wanted[i].Question]) {
			kept[wanted[i].Question] = answer
		}
	}
	s.wanted, s.asked, s.turn = wanted, kept, max(leastTurn, time.Duration(nodes)*turnForNode)
}

// due returns what to ask now, a batch at most, and without any, after how long there is
// something; 0 means not before other questions are wanted. New questions come first, then hosts
// that had an address.
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

// urgency is less for a question that was never asked.
func (s *schedule) urgency(question Question) int {
	if _, found := s.asked[question]; !found {
		return 0
	}
	return 1
}

// answer takes in the answers to questions; one without has nobody.
func (s *schedule) answer(questions []Question, answers map[Question]Answer, now time.Time) {
	for _, question := range questions {
		s.asked[question] = asked{at: now, Answer: answers[question]}
	}
}
