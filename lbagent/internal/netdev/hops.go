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
	// minFlushDelay is the minimum delay from a change to the update of hops. To limit CPU usage, the delay is
	// also rest times the last update's duration, up to longest, so that neighbor replies are processed.
	minFlushDelay = 10 * time.Millisecond
	flushFactor   = 5
	maxFlushDelay = time.Second
	// refresh is the interval for renewing the lease of the hops and adding missing neighbors to the
	// kernel.
	refresh = 5 * time.Second
	// resync is the interval for reading everything again. The kernel reports most changes, but not the
	// expiry of a path MTU.
	resync = time.Minute
)

// HopConfig configures a HopWatcher.
type HopConfig struct {
	Set func(map[forwarding.NodeID]forwarding.Hop) error
	// SetIngress sets the ingress interfaces of each node. Packets of a node without an entry are
	// accepted on any interface.
	SetIngress func(map[forwarding.NodeID][]int) error
	// RenewLease confirms the last set of hops. The program does not use hops beyond their lease.
	RenewLease func() error
	Report     func(error)
}

// HopWatcher updates prepared next hops from the kernel's routes, interfaces and neighbors. It makes the
// kernel keep neighbors resolved, because packets sent by XDP neither resolve nor confirm them.
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

// SetTargets sets the target nodes, and the interfaces that run the program, each with the interfaces on which
// it receives frames, all by index. The maps must not be modified afterwards.
func (w *HopWatcher) SetTargets(targets map[forwarding.NodeID]fib.Target, devices map[int][]int) {
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

func (w *HopWatcher) desired() (map[forwarding.NodeID]fib.Target, map[int][]int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.targets, w.devices
}

// Run watches until ctx is done. During failures the lease of the hops expires, and the program looks up
// routes in the kernel instead.
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

// changes are subscriptions to kernel events. A channel is closed when events were lost.
type changes struct {
	links      chan netlink.LinkUpdate
	routes     chan netlink.RouteUpdate
	neighbours chan netlink.NeighUpdate
}

func subscribe(done <-chan struct{}) (*changes, error) {
	c := &changes{make(chan netlink.LinkUpdate), make(chan netlink.RouteUpdate), make(chan netlink.NeighUpdate)}
	// A failed subscription closes its channel; the error has no further information.
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

var errLost = errors.New("the kernel ended a subscription because messages were lost")

type hopWatch struct {
	*HopWatcher
	report func(error)
	events *changes
	cache  *fibCache
	ticker *time.Ticker
	flush  *time.Timer
	// pending is the scope to read when flush fires; nothing if flush is not set.
	pending scope
	// pause is the minimum delay of the next flush.
	pause   time.Duration
	failure error
	full    time.Time
}

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
	s := &hopWatch{
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

func (s *hopWatch) next(ctx context.Context) error {
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

func (s *hopWatch) schedule(changed scope) {
	if s.pending == nothing && changed != nothing {
		s.flush.Reset(max(minFlushDelay, s.pause))
	}
	s.pending = max(s.pending, changed)
}

func (s *hopWatch) tick() {
	if s.failure != nil || time.Since(s.full) >= resync {
		s.schedule(everything)
		return
	}
	s.failure = errors.Join(s.cache.resolve(), s.config.RenewLease())
	s.report(s.failure)
}

func (s *hopWatch) prepare() {
	begun := time.Now()
	changed := s.pending
	s.pending = nothing
	s.failure = s.set(changed)
	s.report(s.failure)
	if changed == everything && s.failure == nil {
		s.full = begun
	}
	s.pause = min(flushFactor*time.Since(begun), maxFlushDelay)
}

func (s *hopWatch) set(changed scope) error {
	targets, devices := s.desired()
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
	// The new hops are valid even if a neighbor cannot be resolved.
	return errors.Join(err, s.config.RenewLease())
}
