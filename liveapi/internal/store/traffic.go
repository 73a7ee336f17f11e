// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/api/live"
)

// sample contains the counts of a node in one interval, sorted by the number of the frontend.
type sample struct {
	seconds float64
	entries []entry
	drops   []dropped
	// all are the drops of all packets, with frontend 0.
	all     []dropped
	uplinks []console.Uplink
}

// entry contains the counts of a frontend. float32 has seven significant digits, which suffice for rates.
type entry struct {
	frontend                    uint32
	connections, packets, bytes float32
}

type dropped struct {
	frontend, reason uint32
	count            uint64
}

// Rates are averages per second over the window of a Traffic.
type Rates struct {
	Connections, Packets, Bits, Dropped float64
	// Drops contains the parts of Dropped by reason.
	Drops map[string]float64
}

// Service contains the rates of a Service and of its frontends, sorted.
type Service struct {
	Rates
	Frontends []Frontend
}

// Frontend contains the rates of a frontend.
type Frontend struct {
	console.FrontendName
	Rates
}

// Uplink contains the rates of frames that the driver of a node's interface rejected.
type Uplink struct {
	Node, Interface    string
	Transmit, Redirect float64
}

// Traffic contains rates that are summed over all nodes that answer.
type Traffic struct {
	Coverage
	// Oldest is the time of the oldest included sample; zero without samples.
	Oldest time.Time
	// Window is the longest averaging period of any node.
	Window   time.Duration
	Services map[Name]Service
	// Drops are the rates of all dropped packets by reason. Uplinks are the uplinks that lost frames.
	Drops   map[string]float64
	Uplinks []Uplink
}

// SetTraffic adds a sample of a node. Unknown nodes are ignored.
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
	// The counters restarted, so the previous sample does not precede the next one directly.
	if traffic.Seconds <= 0 {
		s.releaseSample(&node.samples[1])
		return
	}
	node.samples[0] = s.newSample(traffic)
}

func (s *Store) newSample(traffic *live.Traffic) sample {
	made := sample{
		seconds: traffic.Seconds, entries: make([]entry, 0, len(traffic.Frontends)), uplinks: slices.Clone(traffic.Uplinks),
		all: s.dropped(nil, 0, traffic.Drops),
	}
	for i := range traffic.Frontends {
		counted := &traffic.Frontends[i]
		frontend := s.frontends.acquire(counted.FrontendName)
		made.entries = append(made.entries, entry{
			frontend, float32(counted.Connections), float32(counted.Packets), float32(counted.Bytes),
		})
		made.drops = s.dropped(made.drops, frontend, counted.Drops)
	}
	slices.SortFunc(made.entries, func(a, b entry) int { return cmp.Compare(a.frontend, b.frontend) })
	slices.SortFunc(made.drops, func(a, b dropped) int { return cmp.Compare(a.frontend, b.frontend) })
	return made
}

func (s *Store) dropped(to []dropped, frontend uint32, drops map[string]uint64) []dropped {
	for reason, count := range drops {
		to = append(to, dropped{frontend, s.reasons.acquire(reason), count})
	}
	return to
}

func (s *Store) releaseSample(old *sample) {
	for i := range old.entries {
		s.frontends.release(old.entries[i].frontend)
	}
	for _, drops := range [][]dropped{old.drops, old.all} {
		for i := range drops {
			s.reasons.release(drops[i].reason)
		}
	}
	*old = sample{}
}

// Traffic returns the traffic of all Services.
func (s *Store) Traffic(now time.Time) Traffic {
	s.mu.RLock()
	defer s.mu.RUnlock()
	traffic, samples := s.window(now)
	sums := make([]Rates, s.frontends.limit())
	var all Rates
	uplinks := map[Uplink]Uplink{}
	for i := range samples {
		sample := &samples[i]
		for j := range sample.entries {
			sums[sample.entries[j].frontend].count(&sample.entries[j], sample.seconds)
		}
		for j := range sample.drops {
			sums[sample.drops[j].frontend].drop(s.reasons.values[sample.drops[j].reason], sample.drops[j].count, sample.seconds)
		}
		for j := range sample.all {
			all.drop(s.reasons.values[sample.all[j].reason], sample.all[j].count, sample.seconds)
		}
		for _, lost := range sample.uplinks {
			name := Uplink{Node: sample.node, Interface: lost.Interface}
			sum := uplinks[name]
			uplinks[name] = Uplink{
				Node: name.Node, Interface: name.Interface, Transmit: sum.Transmit + float64(lost.Transmit)/sample.seconds,
				Redirect: sum.Redirect + float64(lost.Redirect)/sample.seconds,
			}
		}
	}
	traffic.Drops = all.Drops
	traffic.Uplinks = slices.SortedFunc(maps.Values(uplinks), func(a, b Uplink) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Interface, b.Interface))
	})
	traffic.Services = make(map[Name]Service)
	for frontend, rates := range sums {
		if rates.any() {
			traffic.add(&s.frontends.values[frontend], rates)
		}
	}
	traffic.sort()
	return traffic
}

// TrafficOf returns the traffic of one Service.
func (s *Store) TrafficOf(now time.Time, name Name) Traffic {
	s.mu.RLock()
	defer s.mu.RUnlock()
	traffic, samples := s.window(now)
	traffic.Services = map[Name]Service{}
	service := name.Namespace + "/" + name.Name
	for number := range s.frontends.values {
		if s.frontends.values[number].Service != service {
			continue
		}
		rates := Rates{}
		for i := range samples {
			s.addTo(&rates, &samples[i].sample, uint32(number), samples[i].seconds)
		}
		if rates.any() {
			traffic.add(&s.frontends.values[number], rates)
		}
	}
	traffic.sort()
	return traffic
}

func (s *Store) addTo(rates *Rates, of *sample, frontend uint32, seconds float64) {
	at, found := slices.BinarySearchFunc(of.entries, frontend, func(e entry, frontend uint32) int { return cmp.Compare(e.frontend, frontend) })
	if !found {
		return
	}
	rates.count(&of.entries[at], seconds)
	from, _ := slices.BinarySearchFunc(of.drops, frontend, func(d dropped, frontend uint32) int { return cmp.Compare(d.frontend, frontend) })
	for _, dropped := range of.drops[from:] {
		if dropped.frontend != frontend {
			return
		}
		rates.drop(s.reasons.values[dropped.reason], dropped.count, seconds)
	}
}

func (t *Traffic) add(name *console.FrontendName, rates Rates) {
	namespace, service, _ := strings.Cut(name.Service, "/")
	key := Name{namespace, service}
	sum := t.Services[key]
	sum.Connections += rates.Connections
	sum.Packets += rates.Packets
	sum.Bits += rates.Bits
	sum.Dropped += rates.Dropped
	for reason, rate := range rates.Drops {
		if sum.Drops == nil {
			sum.Drops = map[string]float64{}
		}
		sum.Drops[reason] += rate
	}
	sum.Frontends = append(sum.Frontends, Frontend{*name, rates})
	t.Services[key] = sum
}

func (t *Traffic) sort() {
	for _, service := range t.Services {
		slices.SortFunc(service.Frontends, func(a, b Frontend) int { return a.Compare(b.FrontendName) })
	}
}

// nodeSample is one of a node's two samples, with the seconds of both.
type nodeSample struct {
	sample
	node string
}

func (s *Store) window(now time.Time) (Traffic, []nodeSample) {
	traffic := Traffic{Coverage: s.coverage(now)}
	samples := make([]nodeSample, 0, 2*len(s.nodes))
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
			samples = append(samples, nodeSample{one, node.name})
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
