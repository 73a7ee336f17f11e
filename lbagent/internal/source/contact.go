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
	// askTimeout is the response time after which another connection is tried.
	askTimeout = time.Second
	// askPause is the pause after a failed ping, and the lead of a new connection's response after which the
	// old connection counts as broken.
	askPause = 250 * time.Millisecond
	// processed is the delay until received events are visible in Changed.
	processed = settle + 60*time.Millisecond
	// firstRetry and longestRetry bound the backoff of a watch. With jitter of up to the same duration, they
	// match client-go.
	firstRetry   = 800 * time.Millisecond
	longestRetry = 30 * time.Second
)

// Confirm returns once Snapshot includes everything that the API server had when Confirm was called, or with an
// error when ctx is done. A connection without a response is closed if a new connection gets one: after a
// network failure, a dead connection may remain open for long. If neither gets one, connections and watches are
// kept, because reconnecting agents by the thousands would delay the API server further.
func (s *Source) Confirm(ctx context.Context) error {
	// Only responses over one connection are ordered.
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

// awaitAnswer returns after a response over the watches' current or future connection.
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
	// A restarting API server answers on both.
	select {
	case err := <-answer:
		return err
	case <-time.After(askPause):
	}
	// Stop watches before closing their connections: a failed watch would list all objects again.
	s.contact.stopAll()
	s.clients.connections.closeAll()
	s.contact.retry()
	return s.clients.pinged.until(ctx)
}

var errUnreached = errors.New("the connection ended, or nothing came in time")

func isAnswer(err error) bool {
	var status apierrors.APIStatus
	return err == nil || errors.As(err, &status)
}

type contact struct {
	mu sync.Mutex
	// watches are the latest watches by kind; nil for kinds not watched now or not listed yet.
	watches map[string]*followed
	// began is closed and replaced when a watch begins or is no longer awaited; retried to interrupt backoffs.
	began, retried chan struct{}
	// open are all watches that have not ended.
	open map[*followed]bool
}

func newContact() *contact {
	return &contact{
		watches: map[string]*followed{}, open: map[*followed]bool{}, began: make(chan struct{}), retried: make(chan struct{}),
	}
}

func (c *contact) retry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.retried)
	c.retried = make(chan struct{})
}

func (c *contact) stopAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range c.open {
		f.Stop()
	}
}

func (c *contact) nextRetry() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.retried
}

// awaitAll waits until all previously watched kinds are watched again. The error names a missing kind.
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

type followed struct {
	watch.Interface
	// first are the events already received.
	first []watch.Event
	// lists is true until the bookmark that ends the initial list.
	lists    bool
	results  chan watch.Event
	stopped  chan struct{}
	stopOnce sync.Once
	cancel   context.CancelFunc
}

func newFollowed(lists bool) *followed {
	return &followed{lists: lists, results: make(chan watch.Event), stopped: make(chan struct{})}
}

// Stop implements watch.Interface.
func (f *followed) Stop() {
	f.stopOnce.Do(func() {
		close(f.stopped)
		f.Interface.Stop()
		f.cancel()
	})
}

// ResultChan implements watch.Interface.
func (f *followed) ResultChan() <-chan watch.Event { return f.results }

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

func (c *contact) answered(kind string, err error) {
	if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.watches, kind)
	c.tell()
}

// tell wakes awaitAll. mu must be held.
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

// lasting is a ListerWatcher that retries itself while the API server is unreachable, because the backoff of an
// informer cannot be interrupted.
type lasting struct {
	cache.ListerWatcherWithContext
	kind    string
	contact *contact
}

// List implements cache.Lister.
func (l *lasting) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher.
func (l *lasting) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// ListWithContext lists. It returns the API server's error or that of ctx.
func (l *lasting) ListWithContext(ctx context.Context, options metav1.ListOptions) (list runtime.Object, err error) {
	cancel, err := l.attempt(ctx, "list", func(ctx context.Context) error {
		list, err = l.ListerWatcherWithContext.ListWithContext(ctx, options)
		return err
	})
	cancel()
	return list, err
}

// WatchWithContext watches. It returns the API server's error or that of ctx.
func (l *lasting) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	f := newFollowed(options.SendInitialEvents != nil && *options.SendInitialEvents)
	cancel, err := l.attempt(ctx, "watch", func(ctx context.Context) (err error) {
		if f.Interface, err = l.ListerWatcherWithContext.WatchWithContext(ctx, options); err != nil {
			return err
		}
		// client-go reports broken connections and timeouts as watches that ended.
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

// attempt retries until the API server responds or ctx is done. contact.retry interrupts a running try, because
// client-go retries some requests for minutes. The caller must call cancel to release the request.
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
