// SPDX-License-Identifier: Apache-2.0

// Package l2 answers ARP requests (RFC 826) and neighbour solicitations (RFC 4861) for the VIPs that
// package announce selects, and announces VIPs on links. The kernel does not answer, because VIPs are on no
// interface.
package l2

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

// announceCount are the delays of a VIP's gratuitous announcements. They repeat because frames can be lost and a
// switch port may not forward yet.
var announceCount = []time.Duration{0, 200 * time.Millisecond, time.Second, 3 * time.Second, 7 * time.Second}

const (
	// announceInterval is the interval of announcements without changes, for hosts that missed all earlier ones.
	announceInterval = 30 * time.Second
	// burst is the number of announcements between pauses: at most 20,000 per second.
	burst, pause  = 200, 10 * time.Millisecond
	retryInterval = time.Second
	// heartbeatInterval is the heartbeat interval. After takeoverTimeout without one, other nodes take over.
	heartbeatInterval, takeoverTimeout = time.Second, 4 * time.Second
)

// Counts are an interface's counters since the agent started.
type Counts struct {
	// Answered counts answered requests, Limited those above a host's rate limit.
	Answered, Limited uint64
	// Dropped counts requests that the kernel dropped because the sockets' buffers were full.
	Dropped   uint64
	Malformed uint64
	Announced uint64
	Failed    uint64
	VIPs      int
}

type counters struct {
	answered, dropped, malformed, announced, failed atomic.Uint64

	mu sync.Mutex
	// limited and passed are the totals of previous filters; the current filter has its own counters.
	limited, passed uint64
	filter          *filter
}

// use sets the current filter, or none if nil, and adds the previous filter's counters to the totals.
func (c *counters) use(next *filter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.filter != nil {
		c.limited += c.filter.limited()
		c.passed += c.filter.replies()
	}
	c.filter = next
}

func (c *counters) byFilters() (limited, answered uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.filter == nil {
		return c.limited, c.passed
	}
	return c.limited + c.filter.limited(), c.passed + c.filter.replies()
}

// Responder answers on the interfaces given to Set.
type Responder struct {
	logger logr.Logger
	beat   func() error
	// confirm returns after a pass with current objects; nil skips the wait.
	confirm func(ctx context.Context)
	// claimed is called for announcements of other hosts; nil ignores them.
	claimed ClaimFunc
	wake    chan struct{}

	mu     sync.Mutex
	wanted map[string][]netip.Addr
	again  bool
	counts map[string]*counters
	errs   map[string]error

	// lastHeartbeat is the Unix time of the last successful heartbeat in nanoseconds, 0 before the first.
	lastHeartbeat atomic.Int64

	// Used by Run only.
	links   map[string]*link
	failed  map[string]time.Time
	pending []announcement
	// lastAttempt is the time of the last attempted heartbeat, heartbeatErr its error.
	lastAttempt  time.Time
	heartbeatErr error
	// stopped is true after the process was stopped, until confirm returns and closes confirmed.
	stopped      bool
	confirmed    chan struct{}
	socketsAlone bool
}

type announcement struct {
	link    *link
	address netip.Addr
	since   time.Time
	next    int
}

func (t *announcement) due() time.Time { return t.since.Add(announceCount[t.next]) }

// New returns a Responder without VIPs. After the first Set, beat is called every second.
func New(beat func() error, logger logr.Logger) *Responder {
	return &Responder{
		logger: logger, beat: beat, wake: make(chan struct{}, 1),
		counts: map[string]*counters{}, errs: map[string]error{},
		links: map[string]*link{}, failed: map[string]time.Time{},
	}
}

// Set replaces the VIPs of each interface, which are sorted. If again is true, all VIPs are announced as if
// new, because another node may have answered before.
func (r *Responder) Set(wanted map[string][]netip.Addr, again bool) {
	r.mu.Lock()
	r.wanted = wanted
	r.again = r.again || again
	r.mu.Unlock()
	r.notify()
}

// Counts returns the counters of each interface used so far.
func (r *Responder) Counts() map[string]Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := make(map[string]Counts, len(r.counts))
	for name, c := range r.counts {
		limited, answered := c.byFilters()
		counts[name] = Counts{
			Answered: c.answered.Load() + answered, Limited: limited, Dropped: c.dropped.Load(), Malformed: c.malformed.Load(),
			Announced: c.announced.Load(), Failed: c.failed.Load(), VIPs: len(r.wanted[name]),
		}
	}
	return counts
}

// Problems returns the errors of unusable interfaces, sorted.
func (r *Responder) Problems() (problems []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(r.errs)) {
		problems = append(problems, fmt.Sprintf("answering for VIPs on interface %s: %v", name, r.errs[name]))
	}
	return problems
}

// Run answers until ctx is done.
func (r *Responder) Run(ctx context.Context) error {
	defer func() {
		for _, link := range r.links {
			link.close()
		}
	}()
	timer := time.NewTimer(announceInterval)
	defer timer.Stop()
	retold, due := time.Now(), time.Now()
	for {
		woken := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.wake:
			woken = true
		case <-timer.C:
		}
		now := time.Now()
		r.mu.Lock()
		wanted, again := r.wanted, r.again
		r.again = false
		r.mu.Unlock()
		if woken || !now.Before(due) {
			due = now.Add(r.apply(wanted, now))
		}
		if wanted != nil {
			again = r.sendHeartbeat(ctx, now) || again
		}
		if again || now.Sub(retold) >= announceInterval {
			retold = now
			r.announceAll(again, now)
		}
		wait := min(due.Sub(now), retold.Add(announceInterval).Sub(now), r.nextHeartbeat(now))
		if !r.isSilent(now) {
			wait = min(wait, r.announce(now))
		}
		timer.Reset(max(wait, time.Millisecond))
	}
}

func (r *Responder) nextHeartbeat(now time.Time) time.Duration {
	if r.lastAttempt.IsZero() {
		return announceInterval
	}
	return r.lastAttempt.Add(heartbeatInterval).Sub(now)
}

// sendHeartbeat sends a heartbeat and reports whether heartbeats were missing so long that other nodes may have
// answered. After the process was stopped, it waits for confirm, because the VIPs may be stale.
func (r *Responder) sendHeartbeat(ctx context.Context, now time.Time) (missed bool) {
	if now.Sub(r.lastAttempt) < heartbeatInterval && !r.stopped {
		return false
	}
	r.stopped = r.stopped || !r.lastAttempt.IsZero() && now.Sub(r.lastAttempt) >= takeoverTimeout
	r.lastAttempt = now
	if r.stopped && !r.isConfirmed(ctx) {
		return false
	}
	r.stopped = false
	err := r.beat()
	if time.Since(now) >= takeoverTimeout {
		// The process was stopped meanwhile; the next call detects it.
		return false
	}
	if err == nil {
		for _, open := range r.links {
			err = errors.Join(err, open.heartbeat())
		}
	}
	if err != nil && r.heartbeatErr == nil {
		r.logger.Error(err, "Could not send heartbeats: other nodes will answer for VIPs")
	}
	r.heartbeatErr = err
	if err != nil {
		return false
	}
	missed = r.isSilent(now)
	r.lastHeartbeat.Store(now.UnixNano())
	return missed
}

// isConfirmed reports whether confirm has returned. It starts confirm if necessary, which wakes Run at its
// end.
func (r *Responder) isConfirmed(ctx context.Context) bool {
	if r.confirm == nil {
		return true
	}
	select {
	case <-r.confirmed:
		r.confirmed = nil
		return true
	default:
	}
	if r.confirmed == nil {
		confirmed := make(chan struct{})
		r.confirmed = confirmed
		go func() {
			r.confirm(ctx)
			close(confirmed)
			r.notify()
		}()
	}
	return false
}

// isSilent reports whether heartbeats were missing for so long that other nodes answer.
func (r *Responder) isSilent(now time.Time) bool {
	worked := r.lastHeartbeat.Load()
	return worked != 0 && now.Sub(time.Unix(0, worked)) >= takeoverTimeout
}

func (r *Responder) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Responder) apply(wanted map[string][]netip.Addr, now time.Time) (again time.Duration) {
	again = announceInterval
	for name, open := range r.links {
		if len(wanted[name]) == 0 || open.isStale() {
			open.close()
			delete(r.links, name)
		}
	}
	maps.DeleteFunc(r.failed, func(name string, _ time.Time) bool { return len(wanted[name]) == 0 })
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if len(wanted[name]) == 0 {
			continue
		}
		if wait := retryInterval - now.Sub(r.failed[name]); wait > 0 {
			again = min(again, wait)
			continue
		}
		err := r.serve(name, wanted[name], now)
		delete(r.failed, name)
		if err != nil {
			r.failed[name] = now
			again = min(again, retryInterval)
		}
		r.report(name, err)
	}
	r.mu.Lock()
	maps.DeleteFunc(r.errs, func(name string, _ error) bool { return len(wanted[name]) == 0 })
	r.mu.Unlock()
	return again
}

func (r *Responder) serve(name string, addresses []netip.Addr, now time.Time) error {
	open := r.links[name]
	if open == nil {
		r.mu.Lock()
		if r.counts[name] == nil {
			r.counts[name] = &counters{}
		}
		counts := r.counts[name]
		r.mu.Unlock()
		var err error
		if open, err = openLink(name, counts, r); err != nil {
			return err
		}
		r.links[name] = open
	}
	for _, address := range open.set(addresses) {
		r.pending = append(r.pending, announcement{link: open, address: address, since: now})
	}
	return errors.Join(open.join(addresses), open.updateFilter(addresses))
}

func (r *Responder) report(name string, err error) {
	r.mu.Lock()
	before := r.errs[name]
	if delete(r.errs, name); err != nil {
		r.errs[name] = err
	}
	r.mu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		r.logger.Error(err, "Could not answer for VIPs on an interface; will retry", "interface", name, "after", retryInterval)
	case err == nil && before != nil:
		r.logger.Info("VIPs are answered again", "interface", name)
	}
}

// announceAll schedules announcements of all VIPs: a full series if again is true, otherwise one.
func (r *Responder) announceAll(again bool, now time.Time) {
	last := len(announceCount) - 1
	for _, open := range r.links {
		for address := range open.owned() {
			next := announcement{link: open, address: address, since: now.Add(-announceCount[last]), next: last}
			if again {
				next.since, next.next = now, 0
			}
			r.pending = append(r.pending, next)
		}
	}
}

func (r *Responder) announce(now time.Time) (wait time.Duration) {
	wait = announceInterval
	sent := 0
	var later []announcement
	for _, t := range r.pending {
		if t.link.isClosed() || !t.link.owns(t.address) {
			continue
		}
		if left := t.due().Sub(now); left > 0 || sent == burst {
			wait = min(wait, max(left, pause))
			later = append(later, t)
			continue
		}
		t.link.announce(t.address)
		sent++
		if t.next++; t.next < len(announceCount) {
			wait = min(wait, t.due().Sub(now))
			later = append(later, t)
		}
	}
	r.pending = later
	return wait
}
