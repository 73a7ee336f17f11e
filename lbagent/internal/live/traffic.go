// SPDX-License-Identifier: Apache-2.0

package live

import (
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
	// keptSamples are those that a reader may be behind: half a minute.
	keptSamples = 6
	// wantedFor is how long counters are read after somebody asked.
	wantedFor = keptSamples * liveapi.SampleInterval
)

// sampler reads the counters at intervals while somebody asks, and tells each reader what was added
// since it last did.
type sampler struct {
	read func() (*console.Counters, error)
	now  func() time.Time

	mu sync.Mutex
	// asked is when somebody last did.
	asked time.Time
	// wake has a value when the first one asks.
	wake chan struct{}
	// epoch names a row of samples without a gap; empty: there is none.
	epoch string
	// last is the number of the last sample, from 0, and taken its time.
	last  int
	taken time.Time
	// totals are those of the last sample.
	totals map[console.FrontendName]console.Frontend
	// added are what the last samples added, the latest last.
	added []sample
	// err is why the last sample failed.
	err error
	// next is closed by the next sample.
	next chan struct{}
}

// sample is what was added since the one before.
type sample struct {
	took     time.Duration
	services map[string]liveapi.ServiceTraffic
}

func newSampler(read func() (*console.Counters, error)) *sampler {
	return &sampler{read: read, now: time.Now, wake: make(chan struct{}, 1), next: make(chan struct{})}
}

// run takes samples until ctx is done.
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

// take takes a sample, unless nobody has asked for long: then it forgets the former ones, and
// reports false.
func (s *sampler) take() bool {
	s.mu.Lock()
	if s.now().Sub(s.asked) > wantedFor {
		s.forget(nil)
		s.mu.Unlock()
		return false
	}
	s.mu.Unlock()
	now := s.now()
	counters, err := s.read()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.forget(err)
	} else {
		s.add(now, counters)
	}
	close(s.next)
	s.next = make(chan struct{})
	return true
}

func (s *sampler) forget(err error) {
	s.epoch, s.last, s.totals, s.added, s.err = "", 0, nil, nil, err
}

// add adds a sample to the row, or begins one.
func (s *sampler) add(now time.Time, counters *console.Counters) {
	totals := make(map[console.FrontendName]console.Frontend, len(counters.Frontends))
	services := map[string]liveapi.ServiceTraffic{}
	for _, frontend := range counters.Frontends {
		totals[frontend.FrontendName] = frontend
		before, known := s.totals[frontend.FrontendName]
		// A frontend that was not there before has counted since.
		if frontend.Service != "" && (known || s.epoch != "") {
			addTo(services, since(frontend, before))
		}
	}
	took := now.Sub(s.taken)
	s.totals, s.taken, s.err = totals, now, nil
	if s.epoch == "" {
		s.epoch = fmt.Sprintf("%x", now.UnixNano())
		return
	}
	s.last++
	s.added = append(s.added, sample{took: took, services: services})
	if excess := len(s.added) - keptSamples; excess > 0 {
		s.added = slices.Delete(s.added, 0, excess)
	}
}

// since is what a frontend counted after a moment. Its counters start again at zero when it is
// written anew.
func since(now, before console.Frontend) console.Frontend {
	if now.Packets < before.Packets || now.Bytes < before.Bytes || now.Connections < before.Connections {
		return now
	}
	now.Packets -= before.Packets
	now.Bytes -= before.Bytes
	now.Connections -= before.Connections
	drops := map[string]uint64{}
	for reason, count := range now.Drops {
		if more := count - min(count, before.Drops[reason]); more > 0 {
			drops[reason] = more
		}
	}
	now.Drops = drops
	return now
}

// addTo adds what a frontend counted to its Service.
func addTo(services map[string]liveapi.ServiceTraffic, counted console.Frontend) {
	if counted.Packets+counted.Connections == 0 && len(counted.Drops) == 0 {
		return
	}
	sum, known := services[counted.Service]
	if !known {
		sum.Namespace, sum.Name, _ = strings.Cut(counted.Service, "/")
	}
	merge(&sum, counted.Packets, counted.Bytes, counted.Connections, counted.Drops)
	services[counted.Service] = sum
}

func merge(sum *liveapi.ServiceTraffic, packets, bytes, connections uint64, drops map[string]uint64) {
	sum.Packets += packets
	sum.Bytes += bytes
	sum.Connections += connections
	if len(drops) == 0 {
		return
	}
	// Samples share no map with an answer.
	added := maps.Clone(sum.Drops)
	if added == nil {
		added = map[string]uint64{}
	}
	for reason, count := range drops {
		added[reason] += count
	}
	sum.Drops = added
}

// after waits for a sample later than the cursor, and returns what was added since it. Without a
// cursor that it knows, it waits for any sample.
func (s *sampler) after(ctx context.Context, cursor string) (*liveapi.Traffic, error) {
	for {
		s.mu.Lock()
		s.asked = s.now()
		select {
		case s.wake <- struct{}{}:
		default:
		}
		traffic, err, next := s.tell(cursor), s.err, s.next
		// The error is told once; the next sample may do better.
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

// tell returns nil where there is nothing to tell yet.
func (s *sampler) tell(cursor string) *liveapi.Traffic {
	if s.epoch == "" {
		return nil
	}
	traffic := &liveapi.Traffic{Cursor: cursorOf(s.epoch, s.last)}
	number, known := numberIn(cursor, s.epoch)
	missed := s.last - number
	if !known || missed < 0 || missed > len(s.added) {
		return traffic
	}
	if missed == 0 {
		return nil
	}
	sums := map[string]liveapi.ServiceTraffic{}
	var took time.Duration
	for _, sample := range s.added[len(s.added)-missed:] {
		took += sample.took
		for name, counted := range sample.services {
			sum, known := sums[name]
			if !known {
				sum.Namespace, sum.Name = counted.Namespace, counted.Name
			}
			merge(&sum, counted.Packets, counted.Bytes, counted.Connections, counted.Drops)
			sums[name] = sum
		}
	}
	traffic.Seconds = took.Seconds()
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		traffic.Services = append(traffic.Services, sums[name])
	}
	return traffic
}
