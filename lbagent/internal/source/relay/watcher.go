// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/millrace-lb/millrace/api/relay"
)

var errSilent = errors.New("no message from the relay")

type watcher struct {
	decoder  *relay.Decoder
	snapshot bool
	// known are the slices of the stream, which changes are applied to.
	known   map[cache.ObjectName]*discoveryv1.EndpointSlice
	slim    func(*discoveryv1.EndpointSlice)
	silence time.Duration
	results chan watch.Event
	cancel  context.CancelFunc
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.results }

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.cancel() }

func (w *watcher) run(ctx context.Context) error {
	// Decode blocks on the connection, which is closed with the context.
	var silent atomic.Bool
	silence := time.AfterFunc(w.silence, func() {
		silent.Store(true)
		w.cancel()
	})
	defer silence.Stop()
	for {
		silence.Reset(w.silence)
		message, err := w.decoder.Decode()
		// Do not count the processing time.
		silence.Stop()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if silent.Load() {
			return fmt.Errorf("%w for %s", errSilent, w.silence)
		}
		if err != nil {
			return err
		}
		event, err := w.event(message)
		if err != nil {
			return err
		}
		select {
		case w.results <- event:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *watcher) event(message *relay.Event) (watch.Event, error) {
	if message.Type == relay.Bookmark {
		return w.bookmark(message.Version), nil
	}
	slice := message.Slice
	name := cache.ObjectName{Namespace: slice.Namespace, Name: slice.Name}
	before := w.known[name]
	event := watch.Event{Type: watch.Modified, Object: slice}
	switch message.Type {
	case relay.Delete:
		delete(w.known, name)
		event.Type = watch.Deleted
		return event, nil
	case relay.Change:
		if before == nil {
			return watch.Event{}, fmt.Errorf("the relay changed EndpointSlice %s, which it has not sent", name)
		}
		endpoints, err := relay.Apply(before.Endpoints, slice.Endpoints, message.Runs)
		if err != nil {
			return watch.Event{}, fmt.Errorf("EndpointSlice %s: %w", name, err)
		}
		slice.Endpoints = endpoints
	case relay.Put:
		if before == nil {
			event.Type = watch.Added
		}
	default:
		return watch.Event{}, fmt.Errorf("the relay sent an event of unknown type %d", message.Type)
	}
	w.slim(slice)
	w.known[name] = slice
	return event, nil
}

func (w *watcher) bookmark(version uint64) watch.Event {
	object := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.FormatUint(version, 10)}}
	if w.snapshot {
		object.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		w.snapshot = false
	}
	return watch.Event{Type: watch.Bookmark, Object: object}
}
