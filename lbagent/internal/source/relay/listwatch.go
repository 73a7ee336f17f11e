// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/millrace-lb/millrace/api/relay"
)

// ListWatch lists and watches EndpointSlices for an informer. If no relay answers, it uses the API server for
// some seconds, and for up to two minutes after repeated failures. Both use the same resource versions, so that
// a watch can resume at the other.
//
// Returned objects are slim and immutable, because changes are applied to them.
type ListWatch struct {
	cache.ListerWatcherWithContext
	relay *Client
	slim  func(*discoveryv1.EndpointSlice)
	// fallback is the minimum duration of the last watch at the API server; zero after a relay answered.
	fallback time.Duration
}

// NewListWatch returns a ListWatch for relays with the API server as fallback.
func NewListWatch(client *Client, server cache.ListerWatcherWithContext, slim func(*discoveryv1.EndpointSlice)) *ListWatch {
	return &ListWatch{ListerWatcherWithContext: server, relay: client, slim: slim}
}

// List implements cache.Lister.
func (l *ListWatch) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher.
func (l *ListWatch) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// ListWithContext lists from the API server. Informers list if a watch with initial events failed.
func (l *ListWatch) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	object, err := l.ListerWatcherWithContext.ListWithContext(ctx, options)
	if list, ok := object.(*discoveryv1.EndpointSliceList); ok && err == nil {
		for i := range list.Items {
			l.slim(&list.Items[i])
		}
	}
	return object, err
}

// WatchWithContext watches. It returns the API server's error, or that the version has expired.
func (l *ListWatch) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	watched, err := l.watchRelay(ctx, options)
	switch {
	case err == nil:
		l.relay.record(nil)
		l.fallback = 0
		return watched, nil
	case errors.Is(err, errExpired):
		return nil, apierrors.NewResourceExpired(err.Error())
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	l.relay.record(err)
	l.fallback = min(max(2*l.fallback, minFallback), l.relay.fallback)
	options.TimeoutSeconds = new(int64((l.fallback + rand.N(l.fallback)).Seconds()))
	watched, err = l.ListerWatcherWithContext.WatchWithContext(ctx, options)
	if err != nil {
		return nil, err
	}
	return watch.Filter(watched, func(event watch.Event) (watch.Event, bool) {
		if slice, ok := event.Object.(*discoveryv1.EndpointSlice); ok && event.Type != watch.Bookmark {
			l.slim(slice)
		}
		return event, true
	}), nil
}

var errNoVersion = errors.New("a relay cannot watch from an unknown resource version")

func (l *ListWatch) watchRelay(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	since, err := relay.ParseVersion(options.ResourceVersion)
	if err != nil {
		return nil, err
	}
	query := relay.Request{Since: since, Snapshot: options.SendInitialEvents != nil && *options.SendInitialEvents}
	if since == 0 && !query.Snapshot {
		return nil, errNoVersion
	}
	ctx, cancel := context.WithCancel(ctx)
	body, silence, err := l.relay.open(ctx, query)
	if err != nil {
		cancel()
		return nil, err
	}
	w := &watcher{
		decoder: relay.NewDecoder(body), snapshot: query.Snapshot, known: map[cache.ObjectName]*discoveryv1.EndpointSlice{},
		slim: l.slim, silence: silence, results: make(chan watch.Event), cancel: cancel,
	}
	go func() {
		defer body.Close()
		defer close(w.results)
		if err := w.run(ctx); err != nil && (ctx.Err() == nil || errors.Is(err, errSilent)) {
			l.relay.logger.Info("The stream of a relay ended", "error", err.Error())
		}
	}()
	return w, nil
}
