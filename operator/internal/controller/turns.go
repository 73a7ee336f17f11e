// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// serviceWorkers is how many Services are reconciled at once. Most of the time they wait for the
// API server.
const serviceWorkers = 8

// turns has workers take turns: one of them runs, while the others wait for the API server. So what
// is between two calls to the API server sees and changes everything at once. Between calls all
// may have changed but what belongs to the Service itself, which no other worker has.
type turns struct {
	// alone is locked for writing by a worker that must be the only one, for reading by the others.
	alone sync.RWMutex
	// mu is held by the worker that runs.
	mu sync.Mutex
	// isAlone is true while a worker is.
	isAlone bool
	// active are the Services that workers have.
	active map[types.NamespacedName]struct{}
	// progress is told of whenever somebody who waits may go on.
	progress sync.Cond
}

// errAlone says that a worker can go on only while there is no other.
var errAlone = errors.New("others have waited longer, and must be served first")

// take runs work on a Service beside that of other workers, and again alone where it returns
// errAlone.
func (t *turns) take(service types.NamespacedName, work func() error) error {
	err := t.beside(service, work)
	if !errors.Is(err, errAlone) {
		return err
	}
	t.alone.Lock()
	defer t.alone.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isAlone = true
	defer func() { t.isAlone = false }()
	return work()
}

func (t *turns) beside(service types.NamespacedName, work func() error) error {
	t.alone.RLock()
	defer t.alone.RUnlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active == nil {
		t.active, t.progress.L = map[types.NamespacedName]struct{}{}, &t.mu
	}
	t.active[service] = struct{}{}
	defer func() {
		delete(t.active, service)
		t.progress.Broadcast()
	}()
	return work()
}

// areActive reports whether workers have all of these Services.
func (t *turns) areActive(services []types.NamespacedName) bool {
	for _, service := range services {
		if _, active := t.active[service]; !active {
			return false
		}
	}
	return true
}

// wait lets others run until one of them has gone a step further.
func (t *turns) wait() { t.progress.Wait() }

// tell lets those go on that wait.
func (t *turns) tell() { t.progress.Broadcast() }

// reader is a Reader of the API server itself. Others run during its calls.
type reader struct {
	client.Reader
	turns *turns
}

func (r reader) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	defer r.turns.leave()()
	return r.Reader.Get(ctx, key, object, options...)
}

func (r reader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	defer r.turns.leave()()
	return r.Reader.List(ctx, list, options...)
}

// leave lets others run until what it returns is called.
func (t *turns) leave() (enter func()) {
	t.mu.Unlock()
	return t.mu.Lock
}

// writer is a Client that reads from the cache. Others run while it writes.
type writer struct {
	client.Client
	turns *turns
}

func (w writer) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	defer w.turns.leave()()
	return w.Client.Create(ctx, object, options...)
}

func (w writer) Update(ctx context.Context, object client.Object, options ...client.UpdateOption) error {
	defer w.turns.leave()()
	return w.Client.Update(ctx, object, options...)
}

func (w writer) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	defer w.turns.leave()()
	return w.Client.Patch(ctx, object, patch, options...)
}

func (w writer) Delete(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	defer w.turns.leave()()
	return w.Client.Delete(ctx, object, options...)
}

func (w writer) Status() client.SubResourceWriter { return statusWriter{w.Client.Status(), w.turns} }

type statusWriter struct {
	client.SubResourceWriter
	turns *turns
}

func (w statusWriter) Patch(
	ctx context.Context, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption,
) error {
	defer w.turns.leave()()
	return w.SubResourceWriter.Patch(ctx, object, patch, options...)
}
