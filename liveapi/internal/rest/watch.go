// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"context"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// polled is a resource that is watched by polling.
type polled struct {
	interval time.Duration
	// read returns a snapshot of the current objects, or previous if they are unchanged.
	read func(previous *snapshot) (*snapshot, error)
	// changedSince reports whether objects may have changed since a resource version. Nil means that they
	// always may have.
	changedSince func(resourceVersion string) bool
	bookmark     func() runtime.Object
}

type snapshot struct {
	version string
	order   []string
	objects map[string]watchedObject
}

// watchedObject is an object with the value that is compared to detect changes.
type watchedObject struct {
	object   runtime.Object
	observed any
}

func newSnapshot(version string) *snapshot {
	return &snapshot{version: version, objects: map[string]watchedObject{}}
}

type watched interface {
	runtime.Object
	metav1.Object
}

// add adds an object. A change of observed sends an event.
func (l *snapshot) add(object watched, observed any) {
	object.SetResourceVersion(l.version)
	key := object.GetNamespace() + "/" + object.GetName()
	l.order = append(l.order, key)
	l.objects[key] = watchedObject{object, observed}
}

type source[Item any] struct {
	every time.Duration
	list  func() ([]Item, string, error)
	// ignore clears the fields whose changes send no events; nil ignores no field.
	ignore func(*Item)
	// generations detects changes of the store. If it is nil, the list is computed each time.
	generations *generations
}

func watchItems[Item any, Object interface {
	*Item
	watched
}](ctx context.Context, options *internalversion.ListOptions, of source[Item]) watch.Interface {
	made := polled{
		interval: of.every,
		read: func(previous *snapshot) (*snapshot, error) {
			if of.generations != nil && !of.generations.changed() {
				return previous, nil
			}
			items, version, err := of.list()
			if err != nil {
				return nil, err
			}
			found := newSnapshot(version)
			for i := range items {
				item := items[i]
				if of.ignore != nil {
					of.ignore(&item)
				}
				found.add(Object(&items[i]), &item)
			}
			return found, nil
		},
		bookmark: func() runtime.Object { return Object(new(Item)) },
	}
	if of.generations != nil {
		made.changedSince = of.generations.since
	}
	return startWatch(ctx, options, made)
}

type watcher struct {
	polled
	stop   context.CancelFunc
	result chan watch.Event
}

// startWatch starts a watch. It first sends all objects, unless the client has listed the current ones, and
// then changes. It sends no events for objects that were deleted between the client's list and the start of
// the watch.
func startWatch(ctx context.Context, options *internalversion.ListOptions, polled polled) watch.Interface {
	ctx, stop := context.WithCancel(ctx)
	made := &watcher{polled: polled, stop: stop, result: make(chan watch.Event)}
	go made.run(ctx, options)
	return made
}

func (w *watcher) Stop() { w.stop() }

func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

func (w *watcher) run(ctx context.Context, options *internalversion.ListOptions) {
	defer close(w.result)
	defer w.stop()
	last, ok := w.readNow(ctx, nil)
	if !ok {
		return
	}
	if ok = w.begin(ctx, options, last); !ok {
		return
	}
	ticker := time.NewTicker(w.interval)
	defer ticker.Stop()
	for ok {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var next *snapshot
		if next, ok = w.readNow(ctx, last); ok && next != last {
			ok = w.sendDifference(ctx, last, next)
			last = next
		}
	}
}

func (w *watcher) begin(ctx context.Context, options *internalversion.ListOptions, all *snapshot) bool {
	if options == nil {
		options = &internalversion.ListOptions{}
	}
	switch {
	case options.SendInitialEvents != nil && *options.SendInitialEvents:
		return w.sendAll(ctx, watch.Added, all) && w.sendBookmark(ctx, all)
	case options.ResourceVersion == "" || options.ResourceVersion == "0":
		return w.sendAll(ctx, watch.Added, all)
	case w.changedSince != nil && w.changedSince(options.ResourceVersion):
		return w.sendAll(ctx, watch.Modified, all)
	}
	return true
}

func (w *watcher) readNow(ctx context.Context, previous *snapshot) (*snapshot, bool) {
	found, err := w.read(previous)
	if err != nil {
		w.send(ctx, watch.Error, &metav1.Status{Status: metav1.StatusFailure, Message: err.Error(), Reason: metav1.StatusReasonInternalError, Code: 500})
		return nil, false
	}
	return found, true
}

func (w *watcher) sendAll(ctx context.Context, kind watch.EventType, all *snapshot) bool {
	for _, key := range all.order {
		if !w.send(ctx, kind, all.objects[key].object) {
			return false
		}
	}
	return true
}

func (w *watcher) sendDifference(ctx context.Context, last, next *snapshot) bool {
	for _, key := range last.order {
		if _, left := next.objects[key]; !left && !w.send(ctx, watch.Deleted, last.objects[key].object) {
			return false
		}
	}
	for _, key := range next.order {
		before, known := last.objects[key]
		kind := watch.Added
		if known {
			kind = watch.Modified
		}
		if known && reflect.DeepEqual(before.observed, next.objects[key].observed) {
			continue
		}
		if !w.send(ctx, kind, next.objects[key].object) {
			return false
		}
	}
	return true
}

func (w *watcher) sendBookmark(ctx context.Context, all *snapshot) bool {
	object := w.bookmark()
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetResourceVersion(all.version)
		accessor.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return w.send(ctx, watch.Bookmark, object)
}

func (w *watcher) send(ctx context.Context, kind watch.EventType, object runtime.Object) bool {
	select {
	case <-ctx.Done():
		return false
	case w.result <- watch.Event{Type: kind, Object: object}:
		return true
	}
}
