// SPDX-License-Identifier: Apache-2.0

// Package balance selects endpoints by power of two random choices with least requests, slow start, outlier
// ejection and draining.
package balance

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Errors of a selection.
var (
	ErrNone = errors.New("the backend has no endpoints")
	ErrBusy = errors.New("all endpoints of the backend are at their limit of requests")
)

// Settings configure the treatment of endpoints.
type Settings struct {
	// SlowStart is the period of growth of a new endpoint's share; 0 disables it.
	SlowStart time.Duration
	// EjectAfter is the number of consecutive failures before ejection; 0 disables it.
	EjectAfter int
	// EjectFor is the first ejection. It doubles with each consecutive one, up to EjectForMost.
	EjectFor, EjectForMost time.Duration
	// MaxRequests is the maximum number of concurrent requests per endpoint; 0 is unlimited.
	MaxRequests int64
	// MaxPorts limits an endpoint's local ports of single-use connections, including TIME_WAIT; 0 is
	// unlimited.
	MaxPorts int
}

// Address is a configured endpoint.
type Address struct {
	netip.AddrPort
	Draining bool
}

// Endpoint is a backend endpoint, kept with its counters while its address is in successive sets.
type Endpoint struct {
	Address netip.AddrPort

	settings *Settings
	// since is the start of slow start; zero disables it.
	since        time.Time
	active       atomic.Int64
	failures     atomic.Int32
	ejections    atomic.Int32
	ejectedUntil atomic.Int64
	present      context.Context
	leave        context.CancelFunc
	singles      Singles
	text         string
}

// Set is the immutable set of a backend's endpoints.
type Set struct {
	settings *Settings
	all      []*Endpoint
	at       map[netip.AddrPort]*Endpoint
	// open are the candidates for new requests: endpoints that are not draining, or all if all are.
	open []*Endpoint
	// next is the set that replaced this one, or nil.
	next atomic.Pointer[Set]
}

// Latest returns the current replacement of the set, or the set itself.
func (s *Set) Latest() *Set {
	for next := s.next.Load(); next != nil; next = s.next.Load() {
		s = next
	}
	return s
}

// NewSet returns a set that replaces previous, which may be nil.
func NewSet(settings *Settings, addresses []Address, previous *Set, now time.Time) *Set {
	set := &Set{
		settings: settings, all: make([]*Endpoint, 0, len(addresses)),
		at: make(map[netip.AddrPort]*Endpoint, len(addresses)),
	}
	var known map[netip.AddrPort]*Endpoint
	if previous != nil {
		known = previous.at
	}
	for _, address := range addresses {
		endpoint := known[address.AddrPort]
		if endpoint == nil {
			endpoint = &Endpoint{Address: address.AddrPort, settings: settings, text: address.String()}
			endpoint.present, endpoint.leave = context.WithCancel(context.Background())
			// Slow start requires other endpoints to take the rest of the load.
			if len(known) > 0 {
				endpoint.since = now
			}
		}
		set.all, set.at[address.AddrPort] = append(set.all, endpoint), endpoint
		if !address.Draining {
			set.open = append(set.open, endpoint)
		}
	}
	if len(set.open) == 0 {
		set.open = set.all
	}
	if previous != nil {
		previous.next.Store(set)
	}
	return set
}

// Len returns the number of endpoints.
func (s *Set) Len() int { return len(s.all) }

// All returns the endpoints; the slice must not be modified.
func (s *Set) All() []*Endpoint { return s.all }

// At returns the endpoint with an address, or nil. The set may be nil.
func (s *Set) At(address netip.AddrPort) *Endpoint {
	if s == nil {
		return nil
	}
	return s.at[address]
}

// Candidates returns the addresses of the candidates of Pick.
func (s *Set) Candidates() []netip.AddrPort {
	addresses := make([]netip.AddrPort, 0, len(s.open))
	for _, endpoint := range s.open {
		addresses = append(addresses, endpoint.Address)
	}
	return addresses
}

// Without returns endpoints missing in next. The set may be nil.
func (s *Set) Without(next *Set) []*Endpoint {
	if s == nil {
		return nil
	}
	kept := map[*Endpoint]bool{}
	if next != nil {
		for _, endpoint := range next.all {
			kept[endpoint] = true
		}
	}
	var without []*Endpoint
	for _, endpoint := range s.all {
		if !kept[endpoint] {
			without = append(without, endpoint)
		}
	}
	return without
}

// Pick acquires an endpoint, which the caller must Release. Endpoints in tried are a last resort.
func (s *Set) Pick(now time.Time, tried []*Endpoint) (*Endpoint, error) {
	n := len(s.open)
	if n == 0 {
		return nil, ErrNone
	}
	at := now.UnixNano()
	first := rand.IntN(n)
	if n > 1 {
		second := (first + 1 + rand.IntN(n-1)) % n
		if endpoint := better(s.open[first], s.open[second], now, tried); endpoint != nil && endpoint.acquire() {
			return endpoint, nil
		}
	}
	// Neither random choice is usable: prefer any endpoint that is not ejected or tried, then accept any.
	for _, demanding := range []bool{true, false} {
		for i := range n {
			endpoint := s.open[(first+i)%n]
			if (!demanding || endpoint.wanted(at, tried)) && endpoint.acquire() {
				return endpoint, nil
			}
		}
	}
	return nil, ErrBusy
}

func better(a, b *Endpoint, now time.Time, tried []*Endpoint) *Endpoint {
	switch at := now.UnixNano(); {
	case !a.wanted(at, tried):
		if b.wanted(at, tried) {
			return b
		}
		return nil
	case b.wanted(at, tried) && b.load(now) < a.load(now):
		return b
	}
	return a
}

// Take acquires this endpoint unless it is ejected or at its limit.
func (e *Endpoint) Take(now time.Time) bool {
	return e.ejectedUntil.Load() <= now.UnixNano() && e.acquire()
}

func (e *Endpoint) wanted(now int64, tried []*Endpoint) bool {
	return e.ejectedUntil.Load() <= now && !slices.Contains(tried, e)
}

func (e *Endpoint) acquire() bool {
	if e.active.Add(1) > e.settings.MaxRequests && e.settings.MaxRequests > 0 {
		e.active.Add(-1)
		return false
	}
	return true
}

// load returns the number of requests, scaled up during slow start.
func (e *Endpoint) load(now time.Time) float64 {
	load := float64(e.active.Load() + 1)
	if e.since.IsZero() {
		return load
	}
	if age := now.Sub(e.since); age < e.settings.SlowStart {
		// Start at a tenth, so that the endpoint receives some requests to warm up.
		load /= max(float64(age)/float64(e.settings.SlowStart), 0.1)
	}
	return load
}

// Release releases an acquired endpoint.
func (e *Endpoint) Release() { e.active.Add(-1) }

// Text returns the address as "host:port".
func (e *Endpoint) Text() string { return e.text }

// Leave marks the endpoint as removed.
func (e *Endpoint) Leave() { e.leave() }

// Gone reports whether the endpoint was removed. Connections to it are closed after their request.
func (e *Endpoint) Gone() bool { return e.present.Err() != nil }

// AfterRemoval calls f in its own goroutine when the endpoint is removed, unless stopped before.
func (e *Endpoint) AfterRemoval(f func()) (stop func() bool) { return context.AfterFunc(e.present, f) }

// Active returns the number of requests.
func (e *Endpoint) Active() int64 { return e.active.Load() }

// Ejected reports whether the endpoint is ejected.
func (e *Endpoint) Ejected(now time.Time) bool { return e.ejectedUntil.Load() > now.UnixNano() }

// Succeeded resets the counters of failures and ejections.
func (e *Endpoint) Succeeded() {
	// Avoid stores on each request, which would bounce the cache line between cores.
	if e.failures.Load() != 0 {
		e.failures.Store(0)
	}
	if e.ejections.Load() != 0 {
		e.ejections.Store(0)
	}
}

// Failed ejects an endpoint after EjectAfter consecutive failures. At most half are ejected, because more
// failures indicate another cause.
func (s *Set) Failed(endpoint *Endpoint, now time.Time) {
	if s.settings.EjectAfter <= 0 || endpoint.failures.Add(1) < int32(s.settings.EjectAfter) {
		return
	}
	ejected := 0
	for _, other := range s.open {
		if other != endpoint && other.Ejected(now) {
			ejected++
		}
	}
	if 2*(ejected+1) > len(s.open) {
		return
	}
	endpoint.failures.Store(0)
	// Bounded to prevent overflow of the shift.
	times := min(endpoint.ejections.Add(1)-1, 20)
	period := min(s.settings.EjectFor<<times, s.settings.EjectForMost)
	endpoint.ejectedUntil.Store(now.Add(period).UnixNano())
}
