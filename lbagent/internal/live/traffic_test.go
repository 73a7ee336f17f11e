// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-lb/millrace/api/console"
	liveapi "github.com/millrace-lb/millrace/api/live"
)

type counting struct {
	sync.Mutex
	frontends map[console.FrontendName]*console.Frontend
	drops     map[string]uint64
	uplinks   []console.Uplink
	reads     int
	err       error
}

func (c *counting) name(service string, port uint16) console.FrontendName {
	return console.FrontendName{VIP: netip.MustParseAddr("203.0.113.1"), Port: port, Protocol: "TCP", Service: service}
}

func (c *counting) count(name console.FrontendName, packets uint64, reason string) {
	c.Lock()
	defer c.Unlock()
	if c.frontends == nil {
		c.frontends = map[console.FrontendName]*console.Frontend{}
	}
	frontend := c.frontends[name]
	if frontend == nil {
		frontend = &console.Frontend{FrontendName: name, Drops: map[string]uint64{}}
		c.frontends[name] = frontend
	}
	frontend.Packets += packets
	frontend.Bytes += 100 * packets
	frontend.Connections += packets / 10
	if reason != "" {
		frontend.Drops[reason]++
	}
}

func (c *counting) read() (*console.Counters, error) {
	c.Lock()
	defer c.Unlock()
	c.reads++
	counters := &console.Counters{Time: time.Now(), Drops: maps.Clone(c.drops), Uplinks: slices.Clone(c.uplinks)}
	for _, frontend := range c.frontends {
		copied := *frontend
		copied.Drops = maps.Clone(frontend.Drops)
		counters.Frontends = append(counters.Frontends, copied)
	}
	return counters, c.err
}

func (c *counting) edit(change func()) {
	c.Lock()
	defer c.Unlock()
	change()
}

func (c *counting) readCount() int {
	c.Lock()
	defer c.Unlock()
	return c.reads
}

func startSampler(t *testing.T, c *counting) *sampler {
	s := newSampler(c.read)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

func ask(t *testing.T, s *sampler, cursor string) *liveapi.Traffic {
	t.Helper()
	traffic, err := s.wait(t.Context(), cursor)
	if err != nil {
		t.Fatal(err)
	}
	return traffic
}

type reader struct {
	cursor         string
	packets, drops uint64
	seconds        float64
}

func (r *reader) ask(t *testing.T, s *sampler) {
	t.Helper()
	traffic := ask(t, s, r.cursor)
	r.cursor = traffic.Cursor
	r.seconds += traffic.Seconds
	for _, service := range traffic.Frontends {
		r.packets += service.Packets
		for _, count := range service.Drops {
			r.drops += count
		}
	}
}

// TestTraffic checks that readers with different intervals get equal sums.
func TestTraffic(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { checkTraffic(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func checkTraffic(t *testing.T, random *rand.Rand) {
	c := &counting{}
	names := []console.FrontendName{c.name("default/web", 80), c.name("default/web", 443), c.name("default/dns", 53)}
	c.count(names[0], 1_000_000, "no_endpoint")
	s := startSampler(t, c)
	readers := make([]reader, 3)
	for i := range readers {
		if readers[i].ask(t, s); readers[i].packets+readers[i].drops > 0 {
			t.Fatalf("the first response contains counts: %+v", readers[i])
		}
	}
	begin := time.Now()
	var packets, drops uint64
	late := make([]int, len(readers))
	for range 30 {
		n := random.Uint64N(100)
		c.count(names[random.IntN(len(names))], n, "source_range")
		packets += n
		drops++
		time.Sleep(liveapi.SampleInterval)
		synctest.Wait()
		for i := range readers {
			// Some readers are late, but never by more samples than are retained.
			if late[i]++; late[i] < maxSamples-1 && random.IntN(i+1) > 0 {
				continue
			}
			late[i] = 0
			readers[i].ask(t, s)
		}
	}
	for i := range readers {
		for readers[i].packets < packets {
			readers[i].ask(t, s)
		}
		if r := readers[i]; r.packets != packets || r.drops != drops {
			t.Errorf("reader %d: %d packets and %d drops, want %d and %d", i, r.packets, r.drops, packets, drops)
		}
		if passed := time.Since(begin).Seconds(); readers[i].seconds > passed {
			t.Errorf("reader %d: interval of %g s, but only %g s passed", i, readers[i].seconds, passed)
		}
	}
}

func TestTrafficOfNewFrontend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{}
		web := c.name("default/web", 80)
		c.count(web, 1000, "source_range")
		s := startSampler(t, c)
		var r reader
		r.ask(t, s)
		c.edit(func() { delete(c.frontends, web) })
		c.count(web, 10, "source_range")
		c.count(c.name("default/new", 80), 5, "")
		if r.ask(t, s); r.packets != 15 || r.drops != 1 {
			t.Errorf("%d packets and %d drops, want 15 and 1", r.packets, r.drops)
		}
	})
}

// TestTrafficOfNoFrontend checks that drops of packets without a frontend, and frames that drivers did
// not transmit, are included.
func TestTrafficOfNoFrontend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{drops: map[string]uint64{"no_frontend": 100, "fragment": 7}, uplinks: []console.Uplink{{Interface: "eth0", Transmit: 5}}}
		s := startSampler(t, c)
		cursor := ask(t, s, "").Cursor
		c.edit(func() {
			c.drops["no_frontend"] += 3
			c.uplinks[0].Redirect = 2
		})
		time.Sleep(liveapi.SampleInterval)
		synctest.Wait()
		c.edit(func() {
			c.drops["no_frontend"]++
			c.uplinks = append(c.uplinks, console.Uplink{Interface: "eth1", Transmit: 1})
		})
		time.Sleep(liveapi.SampleInterval)
		synctest.Wait()
		got := ask(t, s, cursor)
		wantUplinks := []console.Uplink{{Interface: "eth0", Redirect: 2}, {Interface: "eth1", Transmit: 1}}
		if !maps.Equal(got.Drops, map[string]uint64{"no_frontend": 4}) || !slices.Equal(got.Uplinks, wantUplinks) {
			t.Errorf("drops %v, uplinks %+v, want 4 and %+v", got.Drops, got.Uplinks, wantUplinks)
		}
	})
}

func TestTrafficCursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{}
		s := startSampler(t, c)
		first := ask(t, s, "")
		other := first.Cursor
		for range maxSamples + 1 {
			c.count(c.name("default/web", 80), 10, "")
			other = ask(t, s, other).Cursor
		}
		for _, cursor := range []string{"", "x", "x-1", first.Cursor, first.Cursor + "0000", formatCursor(first.Cursor[:4], -1)} {
			if got := ask(t, s, cursor); got.Seconds != 0 || len(got.Frontends) > 0 || got.Cursor != other {
				t.Errorf("cursor %q: %+v, want a new start at %s", cursor, got, other)
			}
		}
	})
}

// TestCountersReadOnDemand checks that counters are read only while there are requests, and that a failed read
// does not block requests.
func TestCountersReadOnDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{}
		s := startSampler(t, c)
		time.Sleep(time.Hour)
		if reads := c.readCount(); reads != 0 {
			t.Errorf("%d reads without a request", reads)
		}
		first := ask(t, s, "")
		time.Sleep(time.Hour)
		if limit := 2 + int(idleTimeout/liveapi.SampleInterval); c.readCount() > limit {
			t.Errorf("%d reads for one request, want at most %d", c.readCount(), limit)
		}
		failure := errors.New("the kernel is gone")
		c.edit(func() { c.err = failure })
		if _, err := s.wait(t.Context(), first.Cursor); !errors.Is(err, failure) {
			t.Errorf("error %v, want %v", err, failure)
		}
		c.edit(func() { c.err = nil })
		if got := ask(t, s, first.Cursor); got.Seconds != 0 || got.Cursor == first.Cursor {
			t.Errorf("after a failure: %+v, want a new start", got)
		}
	})
}
