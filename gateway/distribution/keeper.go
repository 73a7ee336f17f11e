// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"log/slog"
	"sync"
	"time"
)

// keepPause is the least time between two versions that are kept. To keep one takes as long
// as all that is configured, not as what changed.
const keepPause = time.Second

// keeper keeps the newest version in the store. Serving does not wait for it.
type keeper struct {
	store *Store
	log   *slog.Logger
	wake  chan struct{}
	done  chan struct{}

	mutex    sync.Mutex
	update   *Update
	versions map[string]string
}

func newKeeper(store *Store, log *slog.Logger) *keeper {
	return &keeper{store: store, log: log, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// keep has a version kept soon. The map is the keeper's.
func (k *keeper) keep(update Update, versions map[string]string) {
	k.mutex.Lock()
	k.update, k.versions = &update, versions
	k.mutex.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// run keeps versions until it is stopped, and then the last one.
func (k *keeper) run(stop <-chan struct{}) {
	defer close(k.done)
	for {
		select {
		case <-k.wake:
			k.save()
		case <-stop:
			k.save()
			return
		}
		pause := time.NewTimer(keepPause)
		select {
		case <-pause.C:
		case <-stop:
			pause.Stop()
		}
	}
}

// save saves what has been given since the last time.
func (k *keeper) save() {
	k.mutex.Lock()
	update, versions := k.update, k.versions
	k.update, k.versions = nil, nil
	k.mutex.Unlock()
	if update == nil {
		return
	}
	if err := k.store.Save(*update, versions); err != nil {
		k.log.Warn("the configuration is served, but not kept for a restart", "error", err)
	}
}
