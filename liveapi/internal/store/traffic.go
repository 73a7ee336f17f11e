// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace-lb/millrace/api/live"
)

// sample is what a node counted until a time. Entries are sorted by the Service's number.
type sample struct {
	seconds float64
	entries []entry
	drops   []dropped
}

// entry has seven digits of what was counted: rates need no more.
type entry struct {
	service                     uint32
	connections, packets, bytes float32
}

type dropped struct {
	service, reason uint32
	count           uint64
}

// Rates are means per second over the window of an answer.
type Rates struct {
	Connections, Packets, Bits, Dropped float64
	// Drops are those that Dropped is the sum of, by reason.
	Drops map[string]float64
}

// Traffic is that of all nodes which answer.
type Traffic struct {
	Coverage
	// Oldest is when the counters came that came first; it is zero where there are none.
	Oldest time.Time
	// Window is the longest time that rates are of.
	Window time.Duration
	// Services have traffic; all others have none.
	Services map[Name]Rates
}

// SetTraffic takes what a node counted since it told last. Nodes that SetNodes does not know are
// left out.
func (s *Store) SetTraffic(name string, traffic *live.Traffic, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	node := s.nodes[name]
	if node == nil {
		return
	}
	node.trafficAt = now
	s.releaseSample(&node.samples[1])
	node.samples[1] = node.samples[0]
	node.samples[0] = sample{}
	// Where counting began anew, what was counted before is not what was counted last.
	if traffic.Seconds <= 0 {
		s.releaseSample(&node.samples[1])
		return
	}
	node.samples[0] = s.newSample(traffic)
}

func (s *Store) newSample(traffic *live.Traffic) sample {
	made := sample{seconds: traffic.Seconds, entries: make([]entry, 0, len(traffic.Services))}
	for i := range traffic.Services {
		counted := &traffic.Services[i]
		service := s.services.acquire(Name{counted.Namespace, counted.Name})
		made.entries = append(made.entries, entry{
			service, float32(counted.Connections), float32(counted.Packets), float32(counted.Bytes),
		})
		for reason, count := range counted.Drops {
			made.drops = append(made.drops, dropped{service, s.reasons.acquire(reason), count})
		}
	}
	slices.SortFunc(made.entries, func(a, b entry) int { return cmp.Compare(a.service, b.service) })
	slices.SortFunc(made.drops, func(a, b dropped) int { return cmp.Compare(a.service, b.service) })
	return made
}

func (s *Store) releaseSample(old *sample) {
	for i := range old.entries {
		s.services.release(old.entries[i].service)
	}
	for i := range old.drops {
		s.reasons.release(old.drops[i].reason)
	}
	*old = sample{}
}

// Traffic returns that of all Services.
func (s *Store) Traffic(now time.Time) Traffic {
	s.mu.RLock()
	defer s.mu.RUnlock()
	traffic, samples := s.window(now)
	sums := make([]Rates, s.services.limit())
	for _, sample := range samples {
		for i := range sample.entries {
			sums[sample.entries[i].service].count(&sample.entries[i], sample.seconds)
		}
		for i := range sample.drops {
			sums[sample.drops[i].service].drop(s.reasons.values[sample.drops[i].reason], sample.drops[i].count, sample.seconds)
		}
	}
	traffic.Services = map[Name]Rates{}
	for service, rates := range sums {
		if rates.any() {
			traffic.Services[s.services.values[service]] = rates
		}
	}
	return traffic
}

// TrafficOf returns that of one Service.
func (s *Store) TrafficOf(now time.Time, name Name) Traffic {
	s.mu.RLock()
	defer s.mu.RUnlock()
	traffic, samples := s.window(now)
	traffic.Services = map[Name]Rates{}
	service, ok := s.services.numbers[name]
	if !ok {
		return traffic
	}
	rates := Rates{}
	for _, sample := range samples {
		at, found := slices.BinarySearchFunc(sample.entries, service, func(e entry, service uint32) int { return cmp.Compare(e.service, service) })
		if !found {
			continue
		}
		rates.count(&sample.entries[at], sample.seconds)
		from, _ := slices.BinarySearchFunc(sample.drops, service, func(d dropped, service uint32) int { return cmp.Compare(d.service, service) })
		for _, dropped := range sample.drops[from:] {
			if dropped.service != service {
				break
			}
			rates.drop(s.reasons.values[dropped.reason], dropped.count, sample.seconds)
		}
	}
	if rates.any() {
		traffic.Services[name] = rates
	}
	return traffic
}

// window returns the samples of nodes that answer. Their seconds are those of both samples of a
// node together.
func (s *Store) window(now time.Time) (Traffic, []sample) {
	traffic := Traffic{Coverage: s.coverage(now)}
	samples := make([]sample, 0, 2*len(s.nodes))
	for _, node := range s.ordered {
		seconds := node.samples[0].seconds + node.samples[1].seconds
		if seconds <= 0 || !node.answers(now) {
			continue
		}
		if traffic.Oldest.IsZero() || node.trafficAt.Before(traffic.Oldest) {
			traffic.Oldest = node.trafficAt
		}
		traffic.Window = max(traffic.Window, time.Duration(seconds*float64(time.Second)))
		for _, one := range node.samples {
			one.seconds = seconds
			samples = append(samples, one)
		}
	}
	return traffic, samples
}

func (r *Rates) count(counted *entry, seconds float64) {
	r.Connections += float64(counted.connections) / seconds
	r.Packets += float64(counted.packets) / seconds
	r.Bits += 8 * float64(counted.bytes) / seconds
}

func (r *Rates) drop(reason string, count uint64, seconds float64) {
	if r.Drops == nil {
		r.Drops = map[string]float64{}
	}
	r.Drops[reason] += float64(count) / seconds
	r.Dropped += float64(count) / seconds
}

func (r *Rates) any() bool { return r.Connections+r.Packets+r.Bits+r.Dropped > 0 }
