// SPDX-License-Identifier: Apache-2.0

package dad

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/notify"
)

const (
	// window is how long hosts have to answer. The kernel sends a second request after one second.
	window = 1500 * time.Millisecond
	// batch is the number of concurrent probes. Each needs a neighbour table entry, and the kernel's
	// default is 1024.
	batch            = 128
	conflictInterval = 5 * time.Second
	// freeInterval is the minimum interval of probes for a free address. Each probe is a broadcast, so a node
	// sends one per minRound, and nodes together about ten a second at most.
	freeInterval = time.Minute
	minRound     = time.Second
	roundPerNode = 100 * time.Millisecond
)

// ScheduledProbe is a probe to repeat.
type ScheduledProbe struct {
	Probe
	// Created is the creation time of the VIP. A VIP created again with the same address is probed again.
	Created time.Time
	Urgent  bool
}

type schedule struct {
	wanted     []ScheduledProbe
	sent       map[Probe]sentProbe
	round      time.Duration
	roundStart time.Time
}

type sentProbe struct {
	at time.Time
	Answer
}

// set replaces the probes; answers later than since are kept.
func (s *schedule) set(wanted []ScheduledProbe, nodes int, since map[Probe]time.Time) {
	kept := make(map[Probe]sentProbe, len(wanted))
	for i := range wanted {
		if answer, found := s.sent[wanted[i].Probe]; found && !answer.at.Before(since[wanted[i].Probe]) {
			kept[wanted[i].Probe] = answer
		}
	}
	s.wanted, s.sent, s.round = wanted, kept, max(minRound, time.Duration(nodes)*roundPerNode)
}

// due returns the next batch of probes, or the delay until one is due, or 0. New
// probes come first, then addresses that a host uses.
func (s *schedule) due(now time.Time) (probes []Probe, wait time.Duration) {
	var oldest *ScheduledProbe
	var oldestAt time.Time
	for i := range s.wanted {
		wanted := &s.wanted[i]
		last, found := s.sent[wanted.Probe]
		if held := len(last.HardwareAddr) > 0; held || !found && wanted.Urgent {
			if left := last.at.Add(conflictInterval).Sub(now); held && left > 0 {
				wait = notify.Soonest(wait, left)
				continue
			}
			probes = append(probes, wanted.Probe)
			continue
		}
		if oldest == nil || last.at.Before(oldestAt) {
			oldest, oldestAt = wanted, last.at
		}
	}
	slices.SortStableFunc(probes, func(a, b Probe) int { return cmp.Compare(s.urgency(a), s.urgency(b)) })
	if len(probes) > batch {
		return probes[:batch], 0
	}
	if oldest != nil {
		left := max(oldestAt.Add(freeInterval).Sub(now), s.roundStart.Add(s.round).Sub(now))
		if left <= 0 {
			s.roundStart = now
			return append(probes, oldest.Probe), 0
		}
		wait = notify.Soonest(wait, left)
	}
	if len(probes) > 0 {
		return probes, 0
	}
	return nil, wait
}

func (s *schedule) urgency(probe Probe) int {
	if _, found := s.sent[probe]; !found {
		return 0
	}
	return 1
}

func (s *schedule) record(probes []Probe, answers map[Probe]Answer, now time.Time) {
	for _, probe := range probes {
		s.sent[probe] = sentProbe{at: now, Answer: answers[probe]}
	}
}
