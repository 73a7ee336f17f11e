// SPDX-License-Identifier: Apache-2.0

package source

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// ordered are the objects of a kind as an informer tells them. Each keeps its place in the list
// while it is there, so that two lists differ in the places of what changed; an informer's own list
// has another order each time. The zero value is empty.
type ordered[T interface {
	comparable
	metav1.Object
}] struct {
	// isSynced reports whether it has all that were listed at first.
	isSynced cache.InformerSynced

	mu      sync.Mutex
	objects []T
	places  map[types.NamespacedName]int
	// given is true once objects was given out: it is copied before the next change.
	given bool
}

// observer takes what an informer tells.
type observer interface {
	put(object any)
	remove(object any)
	follow(isSynced cache.InformerSynced)
}

// nobody keeps no list.
type nobody struct{}

func (nobody) put(any)                     {}
func (nobody) remove(any)                  {}
func (nobody) follow(cache.InformerSynced) {}

func (o *ordered[T]) follow(isSynced cache.InformerSynced) { o.isSynced = isSynced }

// put adds an object, in the place of the previous one of its name.
func (o *ordered[T]) put(object any) {
	typed, ok := object.(T)
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.own()
	name := types.NamespacedName{Namespace: typed.GetNamespace(), Name: typed.GetName()}
	place, found := o.places[name]
	if found {
		o.objects[place] = typed
		// The name's text is then the new object's, and the previous one is free.
		delete(o.places, name)
	} else {
		place = len(o.objects)
		o.objects = append(o.objects, typed)
	}
	o.places[name] = place
}

// remove takes an object out. The last one gets its place.
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
	o.own()
	last := len(o.objects) - 1
	if place != last {
		moved := o.objects[last]
		o.objects[place] = moved
		o.places[types.NamespacedName{Namespace: moved.GetNamespace(), Name: moved.GetName()}] = place
	}
	o.objects = slices.Delete(o.objects, last, last+1)
	delete(o.places, name)
}

// own has the list be one that nobody else has.
func (o *ordered[T]) own() {
	if o.places == nil {
		o.places = map[types.NamespacedName]int{}
	}
	if o.given {
		o.objects, o.given = slices.Clone(o.objects), false
	}
}

// list returns the objects. While nothing changes, it is the same list; nobody must change it.
func (o *ordered[T]) list() []T {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.given = true
	return o.objects
}
