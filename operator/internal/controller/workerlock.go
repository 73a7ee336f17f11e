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

// workerLock serializes workers: one runs while the others wait for the API server, so the code between two
// calls is atomic. During a call everything may change except the worker's own Service.
type workerLock struct {
	// exclusive is write-locked by a worker that must be the only one and read-locked by the others.
	exclusive   sync.RWMutex
	mu          sync.Mutex
	isExclusive bool
	active      map[types.NamespacedName]struct{}
	progress    sync.Cond
}

// errNeedsExclusive is returned when a worker can continue only if there are no other workers.
var errNeedsExclusive = errors.New("other Services have waited longer")

// run runs work concurrently with other workers and, if it returns errNeedsExclusive, again without others.
func (t *workerLock) run(service types.NamespacedName, work func() error) error {
	err := t.runShared(service, work)
	if !errors.Is(err, errNeedsExclusive) {
		return err
	}
	t.exclusive.Lock()
	defer t.exclusive.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isExclusive = true
	defer func() { t.isExclusive = false }()
	return work()
}

func (t *workerLock) runShared(service types.NamespacedName, work func() error) error {
	t.exclusive.RLock()
	defer t.exclusive.RUnlock()
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

func (t *workerLock) areActive(services []types.NamespacedName) bool {
	for _, service := range services {
		if _, active := t.active[service]; !active {
			return false
		}
	}
	return true
}

func (t *workerLock) wait() { t.progress.Wait() }

func (t *workerLock) broadcast() { t.progress.Broadcast() }

type unlockingReader struct {
	client.Reader
	lock *workerLock
}

func (r unlockingReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	defer r.lock.release()()
	return r.Reader.Get(ctx, key, object, options...)
}

func (r unlockingReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	defer r.lock.release()()
	return r.Reader.List(ctx, list, options...)
}

func (t *workerLock) release() (enter func()) {
	t.mu.Unlock()
	return t.mu.Lock
}

type unlockingWriter struct {
	client.Client
	lock *workerLock
}

func (w unlockingWriter) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	defer w.lock.release()()
	return w.Client.Create(ctx, object, options...)
}

func (w unlockingWriter) Update(ctx context.Context, object client.Object, options ...client.UpdateOption) error {
	defer w.lock.release()()
	return w.Client.Update(ctx, object, options...)
}

func (w unlockingWriter) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	defer w.lock.release()()
	return w.Client.Patch(ctx, object, patch, options...)
}

func (w unlockingWriter) Delete(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	defer w.lock.release()()
	return w.Client.Delete(ctx, object, options...)
}

func (w unlockingWriter) Status() client.SubResourceWriter {
	return statusWriter{w.Client.Status(), w.lock}
}

type statusWriter struct {
	client.SubResourceWriter
	lock *workerLock
}

func (w statusWriter) Patch(
	ctx context.Context, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption,
) error {
	defer w.lock.release()()
	return w.SubResourceWriter.Patch(ctx, object, patch, options...)
}
