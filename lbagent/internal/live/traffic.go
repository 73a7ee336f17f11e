// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-lb/millrace/api/console"
	liveapi "github.com/millrace-lb/millrace/api/live"
)

const (
	// maxSamples is the number of retained samples, half a minute, for readers that are late.
	maxSamples  = 6
	idleTimeout = maxSamples * liveapi.SampleInterval
)

// sampler reads the counters periodically while there are requests, and returns to each reader the
// increase since its previous request.
type sampler struct {
	read func() (*console.Counters, error)
	now  func() time.Time

	mu        sync.Mutex
	requested time.Time
	wake      chan struct{}
	// epoch identifies a sequence of samples without a gap; empty without a sequence.
	epoch     string
	last      int
	sampledAt time.Time
	totals    map[console.FrontendName]console.Frontend
	dropped   map[string]uint64
	uplinks   map[string]console.Uplink
	added     []sample
	err       error
	next      chan struct{}
}

type sample struct {
	took      time.Duration
	frontends map[console.FrontendName]liveapi.FrontendTraffic
	dropped   map[string]uint64
	uplinks   map[string]console.Uplink
}

func newSampler(read func() (*console.Counters, error)) *sampler {
	return &sampler{read: read, now: time.Now, wake: make(chan struct{}, 1), next: make(chan struct{})}
}

func (s *sampler) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		for s.take() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(liveapi.SampleInterval):
			}
		}
	}
}

// take takes a sample. Without recent requests it discards the previous samples and returns false.
func (s *sampler) take() bool {
	s.mu.Lock()
	if s.now().Sub(s.requested) > idleTimeout {
		s.reset(nil)
		s.mu.Unlock()
		return false
	}
	s.mu.Unlock()
	now := s.now()
	counters, err := s.read()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.reset(err)
	} else {
		s.add(now, counters)
	}
	close(s.next)
	s.next = make(chan struct{})
	return true
}

func (s *sampler) reset(err error) {
	s.epoch, s.last, s.added, s.err = "", 0, nil, err
	s.totals, s.dropped, s.uplinks = nil, nil, nil
}

func (s *sampler) add(now time.Time, counters *console.Counters) {
	totals := make(map[console.FrontendName]console.Frontend, len(counters.Frontends))
	next := sample{
		took: now.Sub(s.sampledAt), frontends: map[console.FrontendName]liveapi.FrontendTraffic{},
		dropped: mapIncrease(counters.Drops, s.dropped), uplinks: map[string]console.Uplink{},
	}
	for _, frontend := range counters.Frontends {
		totals[frontend.FrontendName] = frontend
		before, known := s.totals[frontend.FrontendName]
		// A new frontend has counted since its creation.
		if frontend.Service != "" && (known || s.epoch != "") {
			next.count(increase(frontend, before))
		}
	}
	uplinks := make(map[string]console.Uplink, len(counters.Uplinks))
	for _, uplink := range counters.Uplinks {
		uplinks[uplink.Interface] = uplink
		before := s.uplinks[uplink.Interface]
		lost := console.Uplink{
			Interface: uplink.Interface, Transmit: counterIncrease(uplink.Transmit, before.Transmit), Redirect: counterIncrease(uplink.Redirect, before.Redirect),
		}
		if lost.Transmit+lost.Redirect > 0 {
			next.uplinks[uplink.Interface] = lost
		}
	}
	s.totals, s.dropped, s.uplinks, s.sampledAt, s.err = totals, counters.Drops, uplinks, now, nil
	if s.epoch == "" {
		s.epoch = fmt.Sprintf("%x", now.UnixNano())
		return
	}
	s.last++
	s.added = append(s.added, next)
	if excess := len(s.added) - maxSamples; excess > 0 {
		s.added = slices.Delete(s.added, 0, excess)
	}
}

// increase returns the increase of a frontend's counters. They restart at zero when the frontend is written
// again.
func increase(now, before console.Frontend) console.Frontend {
	if now.Packets < before.Packets || now.Bytes < before.Bytes || now.Connections < before.Connections {
		return now
	}
	now.Packets -= before.Packets
	now.Bytes -= before.Bytes
	now.Connections -= before.Connections
	now.Drops = mapIncrease(now.Drops, before.Drops)
	return now
}

func counterIncrease(now, before uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

func mapIncrease(now, before map[string]uint64) map[string]uint64 {
	grown := map[string]uint64{}
	for name, count := range now {
		if growth := counterIncrease(count, before[name]); growth > 0 {
			grown[name] = growth
		}
	}
	return grown
}

func (s *sample) count(counted console.Frontend) {
	if counted.Packets+counted.Connections == 0 && len(counted.Drops) == 0 {
		return
	}
	s.frontends[counted.FrontendName] = liveapi.FrontendTraffic{
		FrontendName: counted.FrontendName, Packets: counted.Packets, Bytes: counted.Bytes, Connections: counted.Connections, Drops: counted.Drops,
	}
}

func (s *sample) merge(later *sample) {
	s.took += later.took
	for name, counted := range later.frontends {
		sum := s.frontends[name]
		drops := maps.Clone(sum.Drops)
		if drops == nil {
			drops = map[string]uint64{}
		}
		addTo(drops, counted.Drops)
		s.frontends[name] = liveapi.FrontendTraffic{
			FrontendName: name, Packets: sum.Packets + counted.Packets, Bytes: sum.Bytes + counted.Bytes,
			Connections: sum.Connections + counted.Connections, Drops: drops,
		}
	}
	addTo(s.dropped, later.dropped)
	for name, lost := range later.uplinks {
		sum := s.uplinks[name]
		s.uplinks[name] = console.Uplink{Interface: name, Transmit: sum.Transmit + lost.Transmit, Redirect: sum.Redirect + lost.Redirect}
	}
}

func addTo(sums, counts map[string]uint64) {
	for name, count := range counts {
		sums[name] += count
	}
}

// wait waits for a sample later than the cursor, and returns the increase since the cursor. With an
// unknown cursor it waits for any sample.
func (s *sampler) wait(ctx context.Context, cursor string) (*liveapi.Traffic, error) {
	for {
		s.mu.Lock()
		s.requested = s.now()
		select {
		case s.wake <- struct{}{}:
		default:
		}
		traffic, err, next := s.increaseSince(cursor), s.err, s.next
		// The error is returned once; the next sample may succeed.
		s.err = nil
		s.mu.Unlock()
		if traffic != nil {
			return traffic, nil
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-next:
		}
	}
}

func (s *sampler) increaseSince(cursor string) *liveapi.Traffic {
	if s.epoch == "" {
		return nil
	}
	traffic := &liveapi.Traffic{Cursor: formatCursor(s.epoch, s.last)}
	number, known := parseCursor(cursor, s.epoch)
	missed := s.last - number
	if !known || missed < 0 || missed > len(s.added) {
		return traffic
	}
	if missed == 0 {
		return nil
	}
	sum := sample{
		frontends: map[console.FrontendName]liveapi.FrontendTraffic{}, dropped: map[string]uint64{}, uplinks: map[string]console.Uplink{},
	}
	for i := range missed {
		sum.merge(&s.added[len(s.added)-missed+i])
	}
	traffic.Seconds, traffic.Drops = sum.took.Seconds(), sum.dropped
	traffic.Frontends = slices.SortedFunc(maps.Values(sum.frontends), func(a, b liveapi.FrontendTraffic) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), a.Compare(b.FrontendName))
	})
	traffic.Uplinks = slices.SortedFunc(maps.Values(sum.uplinks), func(a, b console.Uplink) int { return strings.Compare(a.Interface, b.Interface) })
	return traffic
}
