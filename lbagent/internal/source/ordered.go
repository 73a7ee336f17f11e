// SPDX-License-Identifier: Apache-2.0

package source

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// ordered is the list of an informer's objects in a stable order: each object keeps its position, so that
// successive lists differ only in changed objects. An informer's own list is unordered. The zero value is
// empty.
type ordered[T interface {
	comparable
	metav1.Object
}] struct {
	// isSynced reports whether the initial list is complete.
	isSynced cache.InformerSynced

	mu      sync.Mutex
	objects []T
	places  map[types.NamespacedName]int
	// isShared is true if list has returned objects, which must be copied before a change.
	isShared bool
}

type observer interface {
	put(object any)
	remove(object any)
	follow(isSynced cache.InformerSynced)
}

// noopObserver is an observer that discards all events.
type noopObserver struct{}

func (noopObserver) put(any)                     {}
func (noopObserver) remove(any)                  {}
func (noopObserver) follow(cache.InformerSynced) {}

func (o *ordered[T]) follow(isSynced cache.InformerSynced) { o.isSynced = isSynced }

func (o *ordered[T]) put(object any) {
	typed, ok := object.(T)
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.copyIfShared()
	name := types.NamespacedName{Namespace: typed.GetNamespace(), Name: typed.GetName()}
	place, found := o.places[name]
	if found {
		o.objects[place] = typed
		// Use the new object's strings, so that the previous object can be freed.
		delete(o.places, name)
	} else {
		place = len(o.objects)
		o.objects = append(o.objects, typed)
	}
	o.places[name] = place
}

func (o *ordered[T]) remove(object any) {
	if unknown, is := object.(cache.DeletedFinalStateUnknown); is {
		object = unknown.Obj
	}
	typed, ok := object.(T)
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	name := types.NamespacedName{Namespace: typed.GetNamespace(), Name: typed.GetName()}
	place, found := o.places[name]
	if !found {
		return
	}
	o.copyIfShared()
	last := len(o.objects) - 1
	if place != last {
		moved := o.objects[last]
		o.objects[place] = moved
		o.places[types.NamespacedName{Namespace: moved.GetNamespace(), Name: moved.GetName()}] = place
	}
	o.objects = slices.Delete(o.objects, last, last+1)
	delete(o.places, name)
}

func (o *ordered[T]) copyIfShared() {
	if o.places == nil {
		o.places = map[types.NamespacedName]int{}
	}
	if o.isShared {
		o.objects, o.isShared = slices.Clone(o.objects), false
	}
}

// list returns the immutable list, which is the same until the next change.
func (o *ordered[T]) list() []T {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.isShared = true
	return o.objects
}
