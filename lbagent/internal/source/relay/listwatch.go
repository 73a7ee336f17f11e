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

// ListWatch lists and watches EndpointSlices for an informer. Where no relay answers, it asks the API
// server for some seconds, and for up to two minutes where none answers again and again. Both have the
// same versions, so a watch goes on at the one where it ended at the other.
//
// What it returns is slim, and nobody may change it: changes are applied to it.
type ListWatch struct {
	cache.ListerWatcherWithContext
	relay *Client
	// slim removes of a slice what agents do not read.
	slim func(*discoveryv1.EndpointSlice)
	// instead is how long the API server was asked the last time, at least. It is zero after a relay
	// has answered.
	instead time.Duration
}

// NewListWatch returns one by relays, and by the API server.
func NewListWatch(client *Client, server cache.ListerWatcherWithContext, slim func(*discoveryv1.EndpointSlice)) *ListWatch {
	return &ListWatch{ListerWatcherWithContext: server, relay: client, slim: slim}
}

// List is as ListWithContext.
func (l *ListWatch) List(options metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), options)
}

// Watch is as WatchWithContext.
func (l *ListWatch) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), options)
}

// ListWithContext lists by the API server. Informers do so where a watch that begins with all objects
// failed.
func (l *ListWatch) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	object, err := l.ListerWatcherWithContext.ListWithContext(ctx, options)
	if list, ok := object.(*discoveryv1.EndpointSliceList); ok && err == nil {
		for i := range list.Items {
			l.slim(&list.Items[i])
		}
	}
	return object, err
}

// WatchWithContext watches. The error is that of the API server, or that a version has expired.
func (l *ListWatch) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	watched, err := l.watchRelay(ctx, options)
	switch {
	case err == nil:
		l.relay.note(nil)
		l.instead = 0
		return watched, nil
	case errors.Is(err, errExpired):
		return nil, apierrors.NewResourceExpired(err.Error())
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	l.relay.note(err)
	l.instead = min(max(2*l.instead, firstInstead), l.relay.instead)
	options.TimeoutSeconds = new(int64((l.instead + rand.N(l.instead)).Seconds()))
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

var errNoVersion = errors.New("a relay does not say what changes from an unknown version on")

func (l *ListWatch) watchRelay(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	since, err := relay.ParseVersion(options.ResourceVersion)
	if err != nil {
		return nil, err
	}
	asked := relay.Request{Since: since, Snapshot: options.SendInitialEvents != nil && *options.SendInitialEvents}
	if since == 0 && !asked.Snapshot {
		return nil, errNoVersion
	}
	ctx, cancel := context.WithCancel(ctx)
	body, silence, err := l.relay.open(ctx, asked)
	if err != nil {
		cancel()
		return nil, err
	}
	w := &watcher{
		decoder: relay.NewDecoder(body), snapshot: asked.Snapshot, known: map[cache.ObjectName]*discoveryv1.EndpointSlice{},
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
