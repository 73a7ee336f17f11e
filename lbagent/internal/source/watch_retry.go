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
	// pingTimeout is the response time after which another connection is tried.
	pingTimeout = time.Second
	// pingPause is the pause after a failed ping, and the lead of a new connection's response after which the
	// old connection counts as broken.
	pingPause = 250 * time.Millisecond
	// processed is the delay until received events are visible in Changed.
	processed = coalesceDelay + 60*time.Millisecond
	// minRetry and maxRetry bound the backoff of a watch. With jitter of up to the same duration, they
	// match client-go.
	minRetry = 800 * time.Millisecond
	maxRetry = 30 * time.Second
)

// Confirm returns once Snapshot includes everything that the API server had when Confirm was called, or with an
// error when ctx is done. A connection without a response is closed if a new connection gets one: after a
// network failure, a dead connection may remain open for long. If neither gets one, connections and watches are
// kept, because reconnecting agents by the thousands would delay the API server further.
func (s *Source) Confirm(ctx context.Context) error {
	// Only responses over one connection are ordered.
	s.clients.connections.closePrevious()
	s.tracker.retry()
	if err := s.awaitResponse(ctx); err != nil {
		return err
	}
	if err := s.tracker.awaitAll(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(processed):
		return nil
	}
}

// awaitResponse returns after a response over the watches' current or future connection.
func (s *Source) awaitResponse(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answer, other := make(chan error, 1), make(chan error, 1)
	go func() { answer <- s.clients.pinged.awaitResponse(ctx) }()
	select {
	case err := <-answer:
		return err
	case <-time.After(pingTimeout):
	}
	go func() { other <- s.clients.others.reconnect(ctx) }()
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
	case <-time.After(pingPause):
	}
	// Stop watches before closing their connections: a failed watch would list all objects again.
	s.tracker.stopAll()
	s.clients.connections.closeAll()
	s.tracker.retry()
	return s.clients.pinged.awaitResponse(ctx)
}

var errUnreached = errors.New("the connection ended or timed out")

func isResponse(err error) bool {
	var status apierrors.APIStatus
	return err == nil || errors.As(err, &status)
}

type watchTracker struct {
	mu sync.Mutex
	// watches are the latest watches by kind; nil for kinds not watched now or not listed yet.
	watches map[string]*trackedWatch
	// began is closed and replaced when a watch begins or is no longer awaited; retried to interrupt backoffs.
	began, retried chan struct{}
	// open are all watches that have not ended.
	open map[*trackedWatch]bool
}

func newWatchTracker() *watchTracker {
	return &watchTracker{
		watches: map[string]*trackedWatch{}, open: map[*trackedWatch]bool{}, began: make(chan struct{}), retried: make(chan struct{}),
	}
}

func (c *watchTracker) retry() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.retried)
	c.retried = make(chan struct{})
}

func (c *watchTracker) stopAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := range c.open {
		f.Stop()
	}
}

func (c *watchTracker) nextRetry() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.retried
}

// awaitAll waits until all previously watched kinds are watched again. The error names a missing kind.
func (c *watchTracker) awaitAll(ctx context.Context) error {
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

type trackedWatch struct {
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

func newTrackedWatch(lists bool) *trackedWatch {
	return &trackedWatch{lists: lists, results: make(chan watch.Event), stopped: make(chan struct{})}
}

// Stop implements watch.Interface.
func (f *trackedWatch) Stop() {
	f.stopOnce.Do(func() {
		close(f.stopped)
		f.Interface.Stop()
		f.cancel()
	})
}

// ResultChan implements watch.Interface.
func (f *trackedWatch) ResultChan() <-chan watch.Event { return f.results }

func (c *watchTracker) track(kind string, f *trackedWatch) {
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

func (c *watchTracker) pass(kind string, f *trackedWatch, event watch.Event) bool {
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

func (c *watchTracker) begin(kind string, f *trackedWatch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watches[kind] = f
	c.wakeWaiters()
}

func (c *watchTracker) answered(kind string, err error) {
	if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.watches, kind)
	c.wakeWaiters()
}

// wakeWaiters wakes awaitAll. mu must be held.
func (c *watchTracker) wakeWaiters() {
	close(c.began)
	c.began = make(chan struct{})
}

func (c *watchTracker) end(kind string, f *trackedWatch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, f)
	if c.watches[kind] == f {
		c.watches[kind] = nil
	}
}

// retryingListWatch is a ListerWatcher that retries itself while the API server is unreachable, because the
// backoff of an informer cannot be interrupted.
type retryingListWatch struct {
	cache.ListerWatcherWithContext
	kind    string
	tracker *watchTracker
}

// List implements cache.Lister.
func (l *retryingListWatch) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher.
func (l *retryingListWatch) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// ListWithContext lists. It returns the API server's error or that of ctx.
func (l *retryingListWatch) ListWithContext(ctx context.Context, options metav1.ListOptions) (list runtime.Object, err error) {
	cancel, err := l.attempt(ctx, "list", func(ctx context.Context) error {
		list, err = l.ListerWatcherWithContext.ListWithContext(ctx, options)
		return err
	})
	cancel()
	return list, err
}

// WatchWithContext watches. It returns the API server's error or that of ctx.
func (l *retryingListWatch) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	f := newTrackedWatch(options.SendInitialEvents != nil && *options.SendInitialEvents)
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
	l.tracker.track(l.kind, f)
	return f, nil
}

// attempt retries until the API server responds or ctx is done. contact.retry interrupts a running try, because
// client-go retries some requests for minutes. The caller must call cancel to release the request.
func (l *retryingListWatch) attempt(
	ctx context.Context, what string, try func(ctx context.Context) error,
) (cancel context.CancelFunc, err error) {
	for wait := minRetry; ; wait = min(2*wait, maxRetry) {
		var limited context.Context
		limited, cancel = context.WithCancel(ctx)
		retried, answered := l.tracker.nextRetry(), make(chan struct{})
		go func() {
			select {
			case <-retried:
				cancel()
			case <-answered:
			}
		}()
		err = try(limited)
		close(answered)
		if isResponse(err) || ctx.Err() != nil {
			l.tracker.answered(l.kind, err)
			return cancel, err
		}
		interrupted := limited.Err() != nil
		cancel()
		if interrupted {
			continue
		}
		pause := wait + rand.N(wait)
		utilruntime.HandleErrorWithContext(ctx, err, "The API server is unreachable", "tried", what, "resource", l.kind, "again", pause)
		select {
		case <-ctx.Done():
			return cancel, err
		case <-retried:
		case <-time.After(pause):
		}
	}
}
