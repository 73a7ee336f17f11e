// SPDX-License-Identifier: Apache-2.0

// Package l2 answers for VIPs on the node's links: ARP requests (RFC 826) and neighbour
// solicitations (RFC 4861). When the node comes to answer for a VIP, it tells all hosts of the
// link. Package announce says for which VIPs it does. The VIPs are on no interface, so the kernel
// does not answer.
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

// tells are the times at which hosts are told that the node answers for a VIP now, from the change
// on. One frame can be lost, and a switch may not forward yet.
var tells = []time.Duration{0, 200 * time.Millisecond, time.Second, 3 * time.Second, 7 * time.Second}

const (
	// retell is how often hosts are told while nothing changes: one may have missed all that was
	// told, and send to a node that answered before.
	retell = 30 * time.Second
	// atOnce are the VIPs of which hosts are told before the pause: so 20,000 a second.
	atOnce, pause = 200, 10 * time.Millisecond
	// afterFailure is how long an interface rests that cannot be used.
	afterFailure = time.Second
	// beats is how often the responder says that it works. After hung others take it for one that
	// does not.
	beats, hung = time.Second, 4 * time.Second
)

// Counts are what an interface has seen and done since the agent started.
type Counts struct {
	// Answered are questions for VIPs of the node, Limited such as were left unanswered because a
	// host had too many.
	Answered, Limited uint64
	// Dropped are questions that the kernel dropped, since more came than are read.
	Dropped uint64
	// Malformed are packets that are no valid question.
	Malformed uint64
	// Told are the packets that told all hosts of a VIP.
	Told uint64
	// Failed are packets that could not be built or sent.
	Failed uint64
	// VIPs is for how many the node answers.
	VIPs int
}

type counters struct {
	answered, dropped, malformed, told, failed atomic.Uint64

	mu sync.Mutex
	// limited and passed are what previous filters refused and answered; the present one counts
	// itself.
	limited, passed uint64
	filter          *filter
}

// use has questions counted that a filter refuses or answers; nil is none. What the previous one
// counted stays.
func (c *counters) use(next *filter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.filter != nil {
		c.limited += c.filter.refused()
		c.passed += c.filter.answered()
	}
	c.filter = next
}

// byFilters are the questions that filters refused and answered.
func (c *counters) byFilters() (limited, answered uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.filter == nil {
		return c.limited, c.passed
	}
	return c.limited + c.filter.refused(), c.passed + c.filter.answered()
}

// Responder answers on interfaces.
type Responder struct {
	logger logr.Logger
	beat   func() error
	// confirm returns once VIPs are set by the objects of now; nil where they always are.
	confirm func(ctx context.Context)
	wake    chan struct{}

	mu     sync.Mutex
	wanted map[string][]netip.Addr
	again  bool
	counts map[string]*counters
	errs   map[string]error

	// worked is when the responder could last say that it works, in nanoseconds of Unix time; 0 is
	// never.
	worked atomic.Int64

	// Of Run alone.
	links   map[string]*link
	failed  map[string]time.Time
	pending []telling
	// beaten is when the responder last said that it works, beatErr what came of it.
	beaten  time.Time
	beatErr error
	// away is true from when this process goes on that was stopped until confirm, which asked waits
	// for, has returned.
	away  bool
	asked chan struct{}
	// socketsAlone has links answer by their sockets, as on a kernel without tcx.
	socketsAlone bool
}

// telling is a VIP of which the hosts of a link are to be told.
type telling struct {
	link    *link
	address netip.Addr
	since   time.Time
	next    int
}

func (t *telling) due() time.Time { return t.since.Add(tells[t.next]) }

// New returns a Responder that answers for nothing yet. From the first Set on, beat is called each
// second while it works.
func New(beat func() error, logger logr.Logger) *Responder {
	return &Responder{
		logger: logger, beat: beat, wake: make(chan struct{}, 1),
		counts: map[string]*counters{}, errs: map[string]error{},
		links: map[string]*link{}, failed: map[string]time.Time{},
	}
}

// Set replaces the VIPs, sorted, by the name of the interface on which the node answers. With
// again, hosts are told of all of them as if each were new: another node may have answered before.
func (r *Responder) Set(wanted map[string][]netip.Addr, again bool) {
	r.mu.Lock()
	r.wanted = wanted
	r.again = r.again || again
	r.mu.Unlock()
	r.notify()
}

// Counts are those of each interface that was ever used.
func (r *Responder) Counts() map[string]Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := make(map[string]Counts, len(r.counts))
	for name, c := range r.counts {
		limited, answered := c.byFilters()
		counts[name] = Counts{
			Answered: c.answered.Load() + answered, Limited: limited, Dropped: c.dropped.Load(), Malformed: c.malformed.Load(),
			Told: c.told.Load(), Failed: c.failed.Load(), VIPs: len(r.wanted[name]),
		}
	}
	return counts
}

// Problems says of each interface that cannot be used why, sorted.
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
	timer := time.NewTimer(retell)
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
			again = r.say(ctx, now) || again
		}
		if again || now.Sub(retold) >= retell {
			retold = now
			r.tellAll(again, now)
		}
		wait := min(due.Sub(now), retold.Add(retell).Sub(now), r.nextBeat(now))
		if !r.isSilent(now) {
			wait = min(wait, r.tell(now))
		}
		timer.Reset(max(wait, time.Millisecond))
	}
}

// nextBeat is after how long the responder says again that it works.
func (r *Responder) nextBeat(now time.Time) time.Duration {
	if r.beaten.IsZero() {
		return retell
	}
	return r.beaten.Add(beats).Sub(now)
}

// say says that this node works. It reports whether others may have thought otherwise, and
// answered for its VIPs. After this process was stopped it says nothing before VIPs are known to be
// those of now: others answer for what is left.
func (r *Responder) say(ctx context.Context, now time.Time) (missed bool) {
	if now.Sub(r.beaten) < beats && !r.away {
		return false
	}
	r.away = r.away || !r.beaten.IsZero() && now.Sub(r.beaten) >= hung
	r.beaten = now
	if r.away && !r.isConfirmed(ctx) {
		return false
	}
	r.away = false
	err := r.beat()
	if time.Since(now) >= hung {
		// It was stopped meanwhile, as the next time will find.
		return false
	}
	if err == nil {
		for _, open := range r.links {
			err = errors.Join(err, open.beat())
		}
	}
	if err != nil && r.beatErr == nil {
		r.logger.Error(err, "Cannot tell other nodes that this one answers for VIPs; they will do so in its place")
	}
	r.beatErr = err
	if err != nil {
		return false
	}
	missed = r.isSilent(now)
	r.worked.Store(now.UnixNano())
	return missed
}

// isConfirmed reports whether confirm has returned. It calls that where nobody has, and Run is woken
// afterwards.
func (r *Responder) isConfirmed(ctx context.Context) bool {
	if r.confirm == nil {
		return true
	}
	select {
	case <-r.asked:
		r.asked = nil
		return true
	default:
	}
	if r.asked == nil {
		asked := make(chan struct{})
		r.asked = asked
		go func() {
			r.confirm(ctx)
			close(asked)
			r.notify()
		}()
	}
	return false
}

// isSilent reports whether other nodes answer, since this one could not say that it works.
func (r *Responder) isSilent(now time.Time) bool {
	worked := r.worked.Load()
	return worked != 0 && now.Sub(time.Unix(0, worked)) >= hung
}

// notify has Run look again.
func (r *Responder) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// apply opens and closes links, and gives them their VIPs. It returns after how long it is due
// again.
func (r *Responder) apply(wanted map[string][]netip.Addr, now time.Time) (again time.Duration) {
	again = retell
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
		if wait := afterFailure - now.Sub(r.failed[name]); wait > 0 {
			again = min(again, wait)
			continue
		}
		err := r.serve(name, wanted[name], now)
		delete(r.failed, name)
		if err != nil {
			r.failed[name] = now
			again = min(again, afterFailure)
		}
		r.report(name, err)
	}
	r.mu.Lock()
	maps.DeleteFunc(r.errs, func(name string, _ error) bool { return len(wanted[name]) == 0 })
	r.mu.Unlock()
	return again
}

// serve has the link of an interface answer for addresses. The hosts are told of those that are
// new.
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
		r.pending = append(r.pending, telling{link: open, address: address, since: now})
	}
	return errors.Join(open.join(addresses), open.sift(addresses))
}

// report keeps, and logs, what becomes of an interface.
func (r *Responder) report(name string, err error) {
	r.mu.Lock()
	before := r.errs[name]
	if delete(r.errs, name); err != nil {
		r.errs[name] = err
	}
	r.mu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		r.logger.Error(err, "Cannot answer for VIPs on an interface as it should be; will try again", "interface", name, "after", afterFailure)
	case err == nil && before != nil:
		r.logger.Info("VIPs are answered for again", "interface", name)
	}
}

// tellAll has hosts told of all VIPs: as of new ones, or once.
func (r *Responder) tellAll(again bool, now time.Time) {
	last := len(tells) - 1
	for _, open := range r.links {
		for address := range open.owned() {
			next := telling{link: open, address: address, since: now.Add(-tells[last]), next: last}
			if again {
				next.since, next.next = now, 0
			}
			r.pending = append(r.pending, next)
		}
	}
}

// tell tells hosts of the VIPs that are due, and returns after how long others are.
func (r *Responder) tell(now time.Time) (wait time.Duration) {
	wait = retell
	told := 0
	var later []telling
	for _, t := range r.pending {
		if t.link.isShut() || !t.link.owns(t.address) {
			continue
		}
		if left := t.due().Sub(now); left > 0 || told == atOnce {
			wait = min(wait, max(left, pause))
			later = append(later, t)
			continue
		}
		t.link.tell(t.address)
		told++
		if t.next++; t.next < len(tells) {
			wait = min(wait, t.due().Sub(now))
			later = append(later, t)
		}
	}
	r.pending = later
	return wait
}
