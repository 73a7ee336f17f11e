// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

const (
	// askTimeout is how long the API server has for an answer before it is asked over another connection.
	askTimeout = time.Second
	// askPause is the time between two questions of which the first got no answer, and how much longer
	// a connection has for its answer than another one.
	askPause = 250 * time.Millisecond
	// processed is after how long what a connection has brought is told by Changed.
	processed = settle + 60*time.Millisecond
	// firstRetry and longestRetry are the pauses of a watch that does not reach the API server. With
	// jitter up to twice as long, they are those of client-go.
	firstRetry   = 800 * time.Millisecond
	longestRetry = 30 * time.Second
)

// Confirm returns once a Snapshot has what the API server had when Confirm was called. A connection
// that brings no answer is closed where another one does: after a way was cut, both ends may keep one
// for long that carries nothing. An API server that answers nobody keeps its connections and watches:
// thousands of agents that came anew would have it answer later still. The error says why ctx was done
// before.
func (s *Source) Confirm(ctx context.Context) error {
	// What one connection has brought in order is all that was sent before the answer.
	s.clients.connections.closePrevious()
	s.contact.retry()
	if err := s.awaitAnswer(ctx); err != nil {
		return err
	}
	if err := s.contact.awaitAll(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(processed):
		return nil
	}
}

// awaitAnswer returns once the connection that the watches have, or will have, has brought an answer.
func (s *Source) awaitAnswer(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answer, other := make(chan error, 1), make(chan error, 1)
	go func() { answer <- s.clients.pinged.until(ctx) }()
	select {
	case err := <-answer:
		return err
	case <-time.After(askTimeout):
	}
	go func() { other <- s.clients.others.anew(ctx) }()
	select {
	case err := <-answer:
		return err
	case err := <-other:
		if err != nil {
			return err
		}
	}
	// An API server that had stopped answers both.
	select {
	case err := <-answer:
		return err
	case <-time.After(askPause):
	}
	// Before the connections are closed: a watch that has failed lists all objects again.
	s.contact.stopAll()
	s.clients.connections.closeAll()
	s.contact.retry()
	return s.clients.pinged.until(ctx)
}

// errUnreached is why a watch has ended that never began.
var errUnreached = errors.New("the connection ended, or nothing came in time")

// isAnswer reports whether the API server answered.
func isAnswer(err error) bool {
	var status apierrors.APIStatus
	return err == nil || errors.As(err, &status)
}

// contact knows which kinds are watched.
type contact struct {
	mu sync.Mutex
	// watches are the latest of each kind; nil while it is not watched, or was not listed yet.
	watches map[string]*followed
	// began is closed, and made again, when a watch has begun or none is to be waited for; retried when
	// those that wait are to try again.
	began, retried chan struct{}
	// open are all that have not ended.
	open map[*followed]bool
}

func newContact() *contact {
	return &contact{
		watches: map[string]*followed{}, open: map[*followed]bool{}, began: make(chan struct{}), retried: make(chan struct{}),
	}
}

// retry has those try again now that wait to.
func (c *contact) retry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.retried)
	c.retried = make(chan struct{})
}

// stopAll ends all watches. They begin again from where they were.
func (c *contact) stopAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range c.open {
		f.Stop()
	}
}

// nextRetry is closed by the next retry.
func (c *contact) nextRetry() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.retried
}

// awaitAll waits until all kinds are watched that ever were. The error names one that is not.
func (c *contact) awaitAll(ctx context.Context) error {
	for {
		c.mu.Lock()
		missing, began := "", c.began
		for kind, f := range c.watches {
			if f == nil {
				missing = kind
			}
		}
		c.mu.Unlock()
		if missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("watch %s again: %w", missing, ctx.Err())
		case <-began:
		}
	}
}

// followed is a watch whose beginning and end a contact knows.
type followed struct {
	watch.Interface
	// first has what the watch brought already.
	first []watch.Event
	// lists is true while what comes is a list; a bookmark ends it.
	lists    bool
	results  chan watch.Event
	stopped  chan struct{}
	stopOnce sync.Once
	cancel   context.CancelFunc
}

func newFollowed(lists bool) *followed {
	return &followed{lists: lists, results: make(chan watch.Event), stopped: make(chan struct{})}
}

// Stop ends the watch.
func (f *followed) Stop() {
	f.stopOnce.Do(func() {
		close(f.stopped)
		f.Interface.Stop()
		f.cancel()
	})
}

// ResultChan has what changes until the watch ends.
func (f *followed) ResultChan() <-chan watch.Event { return f.results }

// follow passes on what a watch brings, and notes when it has begun and ends. One that lists first has
// begun once it has.
func (c *contact) follow(kind string, f *followed) {
	c.mu.Lock()
	c.open[f] = true
	c.mu.Unlock()
	if !f.lists {
		c.begin(kind, f)
	}
	go func() {
		defer close(f.results)
		defer c.end(kind, f)
		for _, event := range f.first {
			if !c.pass(kind, f, event) {
				return
			}
		}
		for event := range f.Interface.ResultChan() {
			if !c.pass(kind, f, event) {
				return
			}
		}
	}()
}

// pass passes on an event; false means that nobody wants it any more.
func (c *contact) pass(kind string, f *followed, event watch.Event) bool {
	select {
	case f.results <- event:
	case <-f.stopped:
		return false
	}
	if f.lists && event.Type == watch.Bookmark {
		f.lists = false
		c.begin(kind, f)
	}
	return true
}

func (c *contact) begin(kind string, f *followed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watches[kind] = f
	c.tell()
}

// answered has nobody wait for a kind that the API server does not have, or not for us.
func (c *contact) answered(kind string, err error) {
	if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.watches, kind)
	c.tell()
}

// tell wakes those in awaitAll; mu is held.
func (c *contact) tell() {
	close(c.began)
	c.began = make(chan struct{})
}

func (c *contact) end(kind string, f *followed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, f)
	if c.watches[kind] == f {
		c.watches[kind] = nil
	}
}

// lasting is a ListerWatcher that tries again by itself while the API server is out of reach: an
// informer could not be woken from its own pause.
type lasting struct {
	cache.ListerWatcherWithContext
	kind    string
	contact *contact
}

// List is as ListWithContext.
func (l *lasting) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// Watch is as WatchWithContext.
func (l *lasting) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// ListWithContext lists. The error is that of the API server's answer, or of ctx.
func (l *lasting) ListWithContext(ctx context.Context, options metav1.ListOptions) (list runtime.Object, err error) {
	cancel, err := l.attempt(ctx, "list", func(ctx context.Context) error {
		list, err = l.ListerWatcherWithContext.ListWithContext(ctx, options)
		return err
	})
	cancel()
	return list, err
}

// WatchWithContext watches. The error is that of the API server's answer, or of ctx.
func (l *lasting) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	f := newFollowed(options.SendInitialEvents != nil && *options.SendInitialEvents)
	cancel, err := l.attempt(ctx, "watch", func(ctx context.Context) (err error) {
		if f.Interface, err = l.ListerWatcherWithContext.WatchWithContext(ctx, options); err != nil {
			return err
		}
		// The client turns ends of connections, and timeouts, into watches that have ended.
		select {
		case event, is := <-f.Interface.ResultChan():
			if !is {
				return errUnreached
			}
			f.first = []watch.Event{event}
		default:
		}
		return nil
	})
	if err != nil {
		cancel()
		return nil, err
	}
	f.cancel = cancel
	l.contact.follow(l.kind, f)
	return f, nil
}

// attempt tries until the API server answers or ctx is done. retry ends what is under way: the client
// repeats some requests by itself for minutes. cancel, which must be called, ends what was begun.
func (l *lasting) attempt(
	ctx context.Context, what string, try func(ctx context.Context) error,
) (cancel context.CancelFunc, err error) {
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		var limited context.Context
		limited, cancel = context.WithCancel(ctx)
		retried, answered := l.contact.nextRetry(), make(chan struct{})
		go func() {
			select {
			case <-retried:
				cancel()
			case <-answered:
			}
		}()
		err = try(limited)
		close(answered)
		if isAnswer(err) || ctx.Err() != nil {
			l.contact.answered(l.kind, err)
			return cancel, err
		}
		interrupted := limited.Err() != nil
		cancel()
		if interrupted {
			continue
		}
		pause := wait + rand.N(wait)
		utilruntime.HandleErrorWithContext(ctx, err, "The API server is out of reach", "tried", what, "resource", l.kind, "again", pause)
		select {
		case <-ctx.Done():
			return cancel, err
		case <-retried:
		case <-time.After(pause):
		}
	}
}
