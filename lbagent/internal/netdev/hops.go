// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

const (
	// gather is how long changes are gathered before hops are prepared again, at
	// least; and rest how many times the work's own duration, so that it takes
	// a small part of a processor. With thousands of nodes the first time takes long, as the
	// kernel is told of all neighbours, and what they answer must not wait: for longest at most.
	gather  = 10 * time.Millisecond
	rest    = 5
	longest = time.Second
	// refresh is how often the lease of the hops is renewed, and the kernel told of
	// neighbours that it does not keep.
	refresh = 5 * time.Second
	// resync is how often everything is read again: the kernel tells of most
	// changes, but not of a path MTU that it forgets.
	resync = time.Minute
)

// HopConfig is what a HopWatcher works with.
type HopConfig struct {
	// Set makes the hops the prepared ones.
	Set func(map[forwarding.NodeID]forwarding.Hop) error
	// SetIngress says by which interfaces the packets of each node may come in. Those of a
	// missing node may come in by any.
	SetIngress func(map[forwarding.NodeID][]int) error
	// RenewLease confirms that the hops set last are right: the program uses them no longer
	// than their lease.
	RenewLease func() error
	// Report is told when the work begins to fail, and nil when it is well again.
	Report func(error)
}

// HopWatcher keeps the prepared next hops to other nodes as the kernel's routes,
// interfaces and neighbours say. It also has the kernel keep the neighbours resolved: packets
// that XDP sends neither resolve nor confirm them.
type HopWatcher struct {
	config HopConfig
	wake   chan struct{}

	mu      sync.Mutex
	targets map[forwarding.NodeID]fib.Target
	devices map[int][]int
}

// NewHopWatcher returns a HopWatcher without targets.
func NewHopWatcher(config HopConfig) *HopWatcher {
	return &HopWatcher{config: config, wake: make(chan struct{}, 1)}
}

// Want says which nodes to prepare hops to, and by which interfaces: the indexes of those that
// run the program, each with those by which it sees frames come in. The maps must not be
// changed afterwards.
func (w *HopWatcher) Want(targets map[forwarding.NodeID]fib.Target, devices map[int][]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if maps.Equal(targets, w.targets) && maps.EqualFunc(devices, w.devices, slices.Equal) {
		return
	}
	w.targets, w.devices = targets, devices
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *HopWatcher) wanted() (map[forwarding.NodeID]fib.Target, map[int][]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.targets, w.devices
}

// Run works until ctx is done. While it cannot, the lease of the hops runs out,
// and the program asks the kernel instead.
func (w *HopWatcher) Run(ctx context.Context) error {
	failing := false
	report := func(err error) {
		if failing != (err != nil) {
			w.config.Report(err)
		}
		failing = err != nil
	}
	for {
		if err := w.watch(ctx, report); ctx.Err() == nil {
			report(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(resubscribe):
		}
	}
}

// changes are the kernel's messages. A channel is closed when messages were lost.
type changes struct {
	links      chan netlink.LinkUpdate
	routes     chan netlink.RouteUpdate
	neighbours chan netlink.NeighUpdate
}

func subscribe(done <-chan struct{}) (*changes, error) {
	c := &changes{make(chan netlink.LinkUpdate), make(chan netlink.RouteUpdate), make(chan netlink.NeighUpdate)}
	// A failed subscription closes its channel; the error says no more.
	ignore := func(error) {}
	err := netlink.LinkSubscribeWithOptions(c.links, done, netlink.LinkSubscribeOptions{ErrorCallback: ignore})
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of interfaces: %w", err)
	}
	err = netlink.RouteSubscribeWithOptions(c.routes, done, netlink.RouteSubscribeOptions{ErrorCallback: ignore})
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of routes: %w", err)
	}
	if err := subscribeNeighbours(c.neighbours, done); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *changes) drain() {
	drain(c.links)
	drain(c.routes)
	drain(c.neighbours)
}

var errLost = errors.New("the kernel ended a subscription, as it does when messages were lost")

// watching is the work between two losses of messages.
type watching struct {
	*HopWatcher
	report func(error)
	events *changes
	cache  *fibCache
	ticker *time.Ticker
	flush  *time.Timer
	// pending is what to read again when flush fires, nothing when it is not set.
	pending scope
	// pause is how long to rest after the last flush.
	pause   time.Duration
	failure error
	// full is when everything was read last.
	full time.Time
}

// watch works until ctx is done or messages were lost, and says which.
func (w *HopWatcher) watch(ctx context.Context, report func(error)) error {
	done := make(chan struct{})
	defer close(done)
	events, err := subscribe(done)
	if err != nil {
		return err
	}
	defer events.drain()
	cache, err := newFIBCache()
	if err != nil {
		return err
	}
	defer cache.close()
	s := &watching{
		HopWatcher: w, report: report, events: events, cache: cache,
		ticker: time.NewTicker(refresh), flush: time.NewTimer(0), pending: everything,
	}
	defer s.ticker.Stop()
	defer s.flush.Stop()
	for {
		if err := s.next(ctx); err != nil {
			return err
		}
	}
}

// next waits for one thing to happen, and sees to it.
func (s *watching) next(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.wake:
		s.schedule(everything)
	case link, open := <-s.events.links:
		if !open {
			return errLost
		}
		s.schedule(s.cache.linkChanged(link))
	case route, open := <-s.events.routes:
		if !open {
			return errLost
		}
		s.schedule(s.cache.routeChanged(route))
	case neighbour, open := <-s.events.neighbours:
		if !open {
			return errLost
		}
		s.schedule(s.cache.neighbourChanged(neighbour))
	case <-s.ticker.C:
		s.tick()
	case <-s.flush.C:
		s.prepare()
	}
	return nil
}

// schedule makes the next flush read what changed.
func (s *watching) schedule(changed scope) {
	if s.pending == nothing && changed != nothing {
		s.flush.Reset(max(gather, s.pause))
	}
	s.pending = max(s.pending, changed)
}

// tick renews the lease of what is right, and tries again what is not.
func (s *watching) tick() {
	if s.failure != nil || time.Since(s.full) >= resync {
		s.schedule(everything)
		return
	}
	s.failure = errors.Join(s.cache.resolve(), s.config.RenewLease())
	s.report(s.failure)
}

// prepare reads again what changed, and sets the hops.
func (s *watching) prepare() {
	begun := time.Now()
	changed := s.pending
	s.pending = nothing
	s.failure = s.set(changed)
	s.report(s.failure)
	if changed == everything && s.failure == nil {
		s.full = begun
	}
	s.pause = min(rest*time.Since(begun), longest)
}

func (s *watching) set(changed scope) error {
	targets, devices := s.wanted()
	if err := s.cache.read(targets, devices, changed); err != nil {
		return err
	}
	if err := s.config.Set(s.cache.network.Hops(targets)); err != nil {
		return err
	}
	if err := s.config.SetIngress(s.cache.network.Ingress(targets, forwarding.NodeIngressInterfaces)); err != nil {
		return err
	}
	var err error
	if changed == everything {
		err = s.cache.resolve()
	}
	// The hops that are set are right, also where a neighbour cannot be asked for.
	return errors.Join(err, s.config.RenewLease())
}
