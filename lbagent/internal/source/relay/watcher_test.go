// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/millrace-lb/millrace/api/relay"
)

func sliceOf(version string, addresses ...string) *discoveryv1.EndpointSlice {
	made := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", ResourceVersion: version}}
	for _, address := range addresses {
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return made
}

func newWatcher(stream io.Reader, cancel context.CancelFunc) *watcher {
	return &watcher{
		decoder: relay.NewDecoder(stream), snapshot: true, known: map[cache.ObjectName]*discoveryv1.EndpointSlice{},
		slim: func(*discoveryv1.EndpointSlice) {}, silence: time.Minute, results: make(chan watch.Event), cancel: cancel,
	}
}

func TestEvents(t *testing.T) {
	w := newWatcher(nil, nil)
	for _, step := range []struct {
		told      *relay.Event
		want      watch.EventType
		endpoints string
	}{
		{told: &relay.Event{Type: relay.Put, Slice: sliceOf("1", "a", "b")}, want: watch.Added, endpoints: "a b"},
		{told: &relay.Event{Type: relay.Bookmark, Version: 2}, want: watch.Bookmark},
		{
			told: &relay.Event{Type: relay.Change, Slice: sliceOf("3", "c"), Runs: []relay.Run{{From: 1, Count: 1}, {New: true, Count: 1}}},
			want: watch.Modified, endpoints: "b c",
		},
		{told: &relay.Event{Type: relay.Put, Slice: sliceOf("4", "d")}, want: watch.Modified, endpoints: "d"},
		{told: &relay.Event{Type: relay.Delete, Slice: sliceOf("5")}, want: watch.Deleted},
		{told: &relay.Event{Type: relay.Bookmark, Version: 6}, want: watch.Bookmark},
	} {
		event, err := w.event(step.told)
		if err != nil || event.Type != step.want {
			t.Fatalf("%+v is %s, %v, want %s", step.told, event.Type, err, step.want)
		}
		slice := event.Object.(*discoveryv1.EndpointSlice)
		var endpoints []string
		for _, endpoint := range slice.Endpoints {
			endpoints = append(endpoints, endpoint.Addresses...)
		}
		if got := strings.Join(endpoints, " "); got != step.endpoints {
			t.Errorf("%+v: endpoints %q, want %q", step.told, got, step.endpoints)
		}
		// Only the first bookmark ends a snapshot.
		if ends := slice.Annotations[metav1.InitialEventsAnnotationKey] != ""; ends != (slice.ResourceVersion == "2") {
			t.Errorf("version %s ends a snapshot = %t", slice.ResourceVersion, ends)
		}
	}
}

func TestChangeOfNothing(t *testing.T) {
	w := newWatcher(nil, nil)
	change := &relay.Event{Type: relay.Change, Slice: sliceOf("3"), Runs: []relay.Run{{From: 1, Count: 1}}}
	if event, err := w.event(change); err == nil {
		t.Errorf("no error for a change of an unknown slice: %v", event)
	}
	if _, err := w.event(&relay.Event{Type: relay.Put, Slice: sliceOf("2", "a")}); err != nil {
		t.Fatal(err)
	}
	if event, err := w.event(change); err == nil {
		t.Errorf("no error for an unknown endpoint: %v", event)
	}
}

func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		reader, writer := io.Pipe()
		context.AfterFunc(ctx, func() { _ = reader.CloseWithError(context.Canceled) })
		w := newWatcher(reader, cancel)
		ended := make(chan time.Time, 1)
		go func() {
			if err := w.run(ctx); !errors.Is(err, errSilent) {
				t.Errorf("returned %v, want %v", err, errSilent)
			}
			ended <- time.Now()
		}()
		time.Sleep(50 * time.Second)
		stream, err := relay.Encode(nil, &relay.Event{Type: relay.Bookmark, Version: 7})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := writer.Write(stream); err != nil {
			t.Fatal(err)
		}
		// Processing time is not silence.
		time.Sleep(2 * time.Minute)
		<-w.results
		last := time.Now()
		if silent := (<-ended).Sub(last); silent != time.Minute {
			t.Errorf("returned %s after the last event, want 1m0s", silent)
		}
	})
}
