// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// serviceWorkers is the number of concurrent reconciliations, which mostly wait for the API server.
const serviceWorkers = 8

// turns serializes workers: one runs while the others wait for the API server, so the code between two
// calls is atomic. During a call everything may change except the worker's own Service.
type turns struct {
	// alone is write-locked by a worker that must be the only one and read-locked by the others.
	alone    sync.RWMutex
	mu       sync.Mutex
	isAlone  bool
	active   map[types.NamespacedName]struct{}
	progress sync.Cond
}

// errAlone is returned when a worker can continue only if there are no other workers.
var errAlone = errors.New("other Services have waited longer")

// take runs work concurrently with other workers and, if it returns errAlone, again without others.
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

func (t *turns) areActive(services []types.NamespacedName) bool {
	for _, service := range services {
		if _, active := t.active[service]; !active {
			return false
		}
	}
	return true
}

func (t *turns) wait() { t.progress.Wait() }

func (t *turns) tell() { t.progress.Broadcast() }

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

func (t *turns) leave() (enter func()) {
	t.mu.Unlock()
	return t.mu.Lock
}

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
