// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/checkpoint"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

const (
	// patience is how long an agent that starts waits for the API server, before it goes on with
	// what the agent before it had. One that is there has answered by then, and routers keep
	// the routes far longer.
	patience = 3 * time.Second
	// shortestSave is the time between two checkpoints. Where a write takes long, as
	// in a large cluster, it is saveShare times that: writing takes 2 % of a processor at most.
	shortestSave = 250 * time.Millisecond
	saveShare    = 50
)

// checkpointer has the objects that passes work by: those of the API server or, until they have all
// been listed, those that the agent before this one kept.
type checkpointer struct {
	live   func() *model.Snapshot
	synced <-chan struct{}
	// passwordsRead reports whether the live objects have all passwords.
	passwordsRead func() bool
	// before is what the agent before kept; nil where there is nothing to go on with.
	before *checkpoint.State
	// store is where objects are kept; nil where they are not.
	store  objectStore
	logger logr.Logger
	// known are the nodes that have answered probes; nil where none is probed.
	known func() []membership.Known

	wake chan struct{}
	mu   sync.Mutex
	next *checkpoint.State
}

// objectStore is where objects are kept for the next agent.
type objectStore interface {
	Save(state checkpoint.State) error
}

// newCheckpointer reads the checkpoint. Nothing of it is needed, so failures are only told.
func newCheckpointer(config Config, p parts, logger logr.Logger) *checkpointer {
	m := &checkpointer{
		live: p.objects.Snapshot, synced: p.objects.Synced(), passwordsRead: p.objects.PasswordsRead,
		logger: logger, wake: make(chan struct{}, 1),
	}
	if config.StateDir == "" {
		return m
	}
	store, err := checkpoint.Open(config.StateDir, p.bootID, config.NodeName)
	if err != nil {
		logger.Error(err, "Objects are not kept: an agent that starts without the API server waits for it")
		return m
	}
	m.store = store
	before, err := store.Load()
	switch {
	case err != nil:
		logger.Error(err, "Objects of the agent before are not used")
	case p.datapath.Adoption().Kind == dataplane.Created:
		// Nothing was forwarded, so nothing is to go on.
	default:
		m.before = before
	}
	return m
}

// await waits for objects to work by.
func (m *checkpointer) await(ctx context.Context) error {
	var late <-chan time.Time
	if m.before != nil {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-m.synced:
	case <-late:
		m.logger.Info("The API server has not answered: going on with the objects that the agent before had",
			"services", len(m.before.Objects.Services), "peers", len(m.before.Objects.Peers))
	}
	return nil
}

// errNotRead is why a node that works by a checkpoint has no word of the Secret with the keys.
var errNotRead = errors.New("the API server has not answered since this agent started")

// isLive reports whether the objects are those of the API server.
func (m *checkpointer) isLive() bool {
	select {
	case <-m.synced:
		return true
	default:
		return m.before == nil
	}
}

// objects are those to work by.
func (m *checkpointer) objects() *model.Snapshot {
	if m.isLive() {
		objects := m.live()
		if m.before != nil && !m.passwordsRead() {
			// Without its password a session would end.
			objects.Passwords = m.before.Objects.Passwords
		}
		return objects
	}
	objects := *m.before.Objects
	objects.TunnelKey.Err = errNotRead
	return &objects
}

// former are the objects of the agent before; nil where they are not known.
func (m *checkpointer) former() *model.Snapshot {
	if m.before == nil {
		return nil
	}
	return m.before.Objects
}

// generations are those of the tunnel's keys that the agent before had.
func (m *checkpointer) generations() []uint32 {
	if m.before == nil {
		return nil
	}
	return m.before.Generations
}

// nodes are those that answered probes of the agent before.
func (m *checkpointer) nodes() []membership.Known {
	if m.before == nil {
		return nil
	}
	return m.before.Nodes
}

// touch has what is known of nodes kept, too.
func (m *checkpointer) touch() { wake.Notify(m.wake) }

// state is what is to be kept; nil where there is nothing yet.
func (m *checkpointer) state() *checkpoint.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.next == nil {
		return nil
	}
	state := *m.next
	if m.known != nil {
		state.Nodes = m.known()
	}
	return &state
}

// keep keeps the objects of a pass, with the keys of the tunnel that the node has.
func (m *checkpointer) keep(objects *model.Snapshot, ring tunnelkey.Ring) {
	if m == nil || m.store == nil || !m.isLive() {
		return
	}
	if !m.passwordsRead() && slices.ContainsFunc(objects.Peers, hasPassword) {
		// What was kept may be better.
		return
	}
	generations := slices.Clone(ring.Accepted)
	// The first of a number is found first.
	if i := slices.Index(generations, ring.Sending); i > 0 {
		generations[0], generations[i] = generations[i], generations[0]
	}
	m.mu.Lock()
	m.next = &checkpoint.State{Objects: objects, Generations: generations}
	m.mu.Unlock()
	wake.Notify(m.wake)
}

func hasPassword(peer *millracev1alpha1.LBPeer) bool { return peer.Spec.PasswordSecretRef != nil }

// run writes what is to be kept until ctx is done, and then the rest.
func (m *checkpointer) run(ctx context.Context) error {
	if m.store == nil {
		return nil
	}
	var saved *checkpoint.State
	failing := false
	save := func() (took time.Duration) {
		next := m.state()
		if next == nil || saved != nil && sameState(saved, next) {
			return 0
		}
		began := time.Now()
		err := m.store.Save(*next)
		if err == nil {
			saved = next
		} else if !failing {
			m.logger.Error(err, "Objects are not kept for the next agent")
		}
		failing = err != nil
		return time.Since(began)
	}
	for {
		select {
		case <-ctx.Done():
			save()
			return ctx.Err()
		case <-m.wake:
		}
		pause := max(shortestSave, saveShare*save())
		if failing {
			pause = longestRetry
			wake.Notify(m.wake)
		}
		wait := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
	}
}

// sameState reports whether two have the same objects. Objects are never changed, so the same
// pointer is the same object.
func sameState(a, b *checkpoint.State) bool {
	x, y := a.Objects, b.Objects
	return x.Node == y.Node && maps.Equal(x.Passwords, y.Passwords) && slices.Equal(a.Generations, b.Generations) &&
		slices.Equal(a.Nodes, b.Nodes) &&
		sameObjects(x.Services, y.Services) && sameObjects(x.EndpointSlices, y.EndpointSlices) &&
		sameObjects(x.VIPs, y.VIPs) && sameObjects(x.Pools, y.Pools) && sameObjects(x.LBNodes, y.LBNodes) &&
		sameObjects(x.Peers, y.Peers) && sameObjects(x.Advertisements, y.Advertisements) && sameObjects(x.Routes, y.Routes)
}

// sameObjects compares without the order.
func sameObjects[T comparable](a, b []T) bool {
	came, went := delta.Between(a, b)
	return len(came)+len(went) == 0
}
