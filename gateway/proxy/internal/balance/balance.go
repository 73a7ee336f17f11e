// SPDX-License-Identifier: Apache-2.0

// Package balance spreads requests over endpoints: the less busy of two that chance draws.
// New endpoints start slowly, failing ones are left out for a while, and draining ones
// get nothing new while there are others.
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

// Errors of Pick.
var (
	ErrNone = errors.New("the backend has no endpoints")
	ErrBusy = errors.New("all endpoints of the backend have as many requests as they may have")
)

// Settings say how endpoints are treated.
type Settings struct {
	// SlowStart is how long a new endpoint's share grows. 0 gives it all at once.
	SlowStart time.Duration
	// EjectAfter is how many failures in a row leave an endpoint out. 0 never does.
	EjectAfter int
	// EjectFor is how long; it doubles with each time in a row, up to EjectForMost.
	EjectFor, EjectForMost time.Duration
	// MaxRequests is how many requests an endpoint may have at once. 0 is no limit.
	MaxRequests int64
	// MaxPorts is how many ports single connections to an endpoint may use, with those that have
	// ended of late. 0 is no limit.
	MaxPorts int
}

// Address is an endpoint as the configuration has it.
type Address struct {
	netip.AddrPort
	Draining bool
}

// Endpoint is where requests go. It lives as long as its address is in one set after
// another, so what was learnt about it stays.
type Endpoint struct {
	Address netip.AddrPort

	settings *Settings
	// since is when its slow start began; zero where it had none.
	since        time.Time
	active       atomic.Int64
	failures     atomic.Int32
	ejections    atomic.Int32
	ejectedUntil atomic.Int64
	// present ends when the endpoint is in no set any more.
	present context.Context
	leave   context.CancelFunc
	singles Singles
	// text is the address, as connections want it.
	text string
}

// Set is the endpoints of a backend. It does not change.
type Set struct {
	settings *Settings
	all      []*Endpoint
	at       map[netip.AddrPort]*Endpoint
	// open are those that get new requests: all but the draining, or all.
	open []*Endpoint
	// next is the set that took the place of this one, or nil.
	next atomic.Pointer[Set]
}

// Latest gives the set that has taken the place of this one, which may be itself.
func (s *Set) Latest() *Set {
	for next := s.next.Load(); next != nil; next = s.next.Load() {
		s = next
	}
	return s
}

// NewSet makes a set that follows previous, which may be nil.
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
			// Where nobody else serves there is nobody to take the rest.
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

// Len is how many endpoints there are.
func (s *Set) Len() int { return len(s.all) }

// All gives the endpoints; they are not to be changed.
func (s *Set) All() []*Endpoint { return s.all }

// At gives the endpoint with an address, nil where there is none. The set may be nil.
func (s *Set) At(address netip.AddrPort) *Endpoint {
	if s == nil {
		return nil
	}
	return s.at[address]
}

// Candidates gives the addresses of those that Pick chooses among.
func (s *Set) Candidates() []netip.AddrPort {
	addresses := make([]netip.AddrPort, 0, len(s.open))
	for _, endpoint := range s.open {
		addresses = append(addresses, endpoint.Address)
	}
	return addresses
}

// Without gives the endpoints that the next set does not have. It may be nil.
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

// Pick takes an endpoint, which is to be given back with Release. Those in tried are
// taken only where there is no other.
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
	// Chance drew none that may be taken: any that may, else any at all.
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

// better gives the less busy of two endpoints that are wanted, or nil.
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

// Take takes this endpoint, if it may have one more request and is not left out.
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

// load is the requests that the endpoint would have, by the share that it may have now.
func (e *Endpoint) load(now time.Time) float64 {
	load := float64(e.active.Load() + 1)
	if e.since.IsZero() {
		return load
	}
	if age := now.Sub(e.since); age < e.settings.SlowStart {
		// A tenth at first, so that it gets something to warm up with.
		load /= max(float64(age)/float64(e.settings.SlowStart), 0.1)
	}
	return load
}

// Release gives an endpoint back.
func (e *Endpoint) Release() { e.active.Add(-1) }

// Text is the address as "host:port".
func (e *Endpoint) Text() string { return e.text }

// Leave says that the endpoint is in no set any more.
func (e *Endpoint) Leave() { e.leave() }

// Gone reports whether the endpoint is in no set any more. Connections to it end with their
// request.
func (e *Endpoint) Gone() bool { return e.present.Err() != nil }

// AfterLeave has f called in a goroutine when the endpoint is in no set any more, until stop.
func (e *Endpoint) AfterLeave(f func()) (stop func() bool) { return context.AfterFunc(e.present, f) }

// Active is how many requests the endpoint has.
func (e *Endpoint) Active() int64 { return e.active.Load() }

// Ejected reports whether the endpoint is left out.
func (e *Endpoint) Ejected(now time.Time) bool { return e.ejectedUntil.Load() > now.UnixNano() }

// Succeeded says that the endpoint served.
func (e *Endpoint) Succeeded() {
	// Loads only, as a rule: a store on each request would move the line between cores.
	if e.failures.Load() != 0 {
		e.failures.Store(0)
	}
	if e.ejections.Load() != 0 {
		e.ejections.Store(0)
	}
}

// Failed says that an endpoint of the set failed, and leaves it out after several times.
// Half of the endpoints are never left out: then it is not they who fail.
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
	// 20 doublings are a million times; more could overflow.
	times := min(endpoint.ejections.Add(1)-1, 20)
	period := min(s.settings.EjectFor<<times, s.settings.EjectForMost)
	endpoint.ejectedUntil.Store(now.Add(period).UnixNano())
}
