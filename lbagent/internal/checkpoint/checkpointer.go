// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/wake"
)

const (
	// Patience is how long an agent that starts waits for the API server, before it goes on with
	// what the agent before it had. One that is there has answered by then, and routers keep
	// the routes far longer.
	Patience = 3 * time.Second
	// shortestSave is the time between two checkpoints. Where a write takes long, as
	// in a large cluster, it is saveShare times that: writing takes 2 % of a processor at most.
	shortestSave = 250 * time.Millisecond
	saveShare    = 50
	// saveAgain is how long after one that failed the next is tried.
	saveAgain = 30 * time.Second
)

// Objects are those of the API server.
type Objects interface {
	Snapshot() *model.Snapshot
	// Synced is closed once they have all been listed.
	Synced() <-chan struct{}
	// PasswordsRead reports whether the Snapshot has all passwords.
	PasswordsRead() bool
}

// Checkpointer has the objects that passes work by: those of the API server or, until they have all
// been listed, those that the agent before this one kept. A nil one keeps nothing.
type Checkpointer struct {
	live Objects
	// before is what the agent before kept; nil where there is nothing to go on with.
	before *State
	// store is where objects are kept; nil where they are not.
	store  store
	logger logr.Logger
	// known are the nodes that have answered probes; nil where none is probed.
	known func() []membership.Known

	wake chan struct{}
	mu   sync.Mutex
	next *State
}

// store is where objects are kept for the next agent.
type store interface {
	Save(state State) error
}

// Config is what a Checkpointer works with.
type Config struct {
	// Directory is where objects are kept. Empty: they are not.
	Directory string
	// BootID and Node are the boot and the name of the node: a checkpoint is good for one of each.
	BootID, Node string
	// Unforwarded: nothing was forwarded before this agent, so nothing is to go on.
	Unforwarded bool
	Logger      logr.Logger
}

// NewCheckpointer reads the checkpoint. Nothing of it is needed, so failures are only told.
func NewCheckpointer(live Objects, config Config) *Checkpointer {
	c := &Checkpointer{live: live, logger: config.Logger, wake: make(chan struct{}, 1)}
	if config.Directory == "" {
		return c
	}
	store, err := Open(config.Directory, config.BootID, config.Node)
	if err != nil {
		c.logger.Error(err, "Objects are not kept: an agent that starts without the API server waits for it")
		return c
	}
	c.store = store
	before, err := store.Load()
	switch {
	case err != nil:
		c.logger.Error(err, "Objects of the agent before are not used")
	case config.Unforwarded:
	default:
		c.before = before
	}
	return c
}

// KeepNodes has the nodes kept, too, that have answered probes.
func (c *Checkpointer) KeepNodes(known func() []membership.Known) { c.known = known }

// Await waits for objects to work by.
func (c *Checkpointer) Await(ctx context.Context) error {
	var late <-chan time.Time
	if c.before != nil {
		timer := time.NewTimer(Patience)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.live.Synced():
	case <-late:
		c.logger.Info("The API server has not answered: going on with the objects that the agent before had",
			"services", len(c.before.Objects.Services), "peers", len(c.before.Objects.Peers))
	}
	return nil
}

// errNotRead is why a node that works by a checkpoint has no word of the Secret with the keys.
var errNotRead = errors.New("the API server has not answered since this agent started")

// isLive reports whether the objects are those of the API server.
func (c *Checkpointer) isLive() bool {
	select {
	case <-c.live.Synced():
		return true
	default:
		return c.before == nil
	}
}

// Objects are those to work by.
func (c *Checkpointer) Objects() *model.Snapshot {
	if c.isLive() {
		objects := c.live.Snapshot()
		if c.before != nil && !c.live.PasswordsRead() {
			// Without its password a session would end.
			objects.Passwords = c.before.Objects.Passwords
		}
		return objects
	}
	objects := *c.before.Objects
	objects.TunnelKey.Err = errNotRead
	return &objects
}

// Previous are the objects of the agent before; nil where they are not known.
func (c *Checkpointer) Previous() *model.Snapshot {
	if c.before == nil {
		return nil
	}
	return c.before.Objects
}

// Generations are those of the tunnel's keys that the agent before had.
func (c *Checkpointer) Generations() []uint32 {
	if c.before == nil {
		return nil
	}
	return c.before.Generations
}

// Nodes are those that answered probes of the agent before.
func (c *Checkpointer) Nodes() []membership.Known {
	if c.before == nil {
		return nil
	}
	return c.before.Nodes
}

// Touch has what is known of nodes kept, too.
func (c *Checkpointer) Touch() { wake.Notify(c.wake) }

// state is what is to be kept; nil where there is nothing yet.
func (c *Checkpointer) state() *State {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		return nil
	}
	state := *c.next
	if c.known != nil {
		state.Nodes = c.known()
	}
	return &state
}

// Keep keeps the objects of a pass, with the keys of the tunnel that the node has.
func (c *Checkpointer) Keep(objects *model.Snapshot, ring tunnelkey.Ring) {
	if c == nil || c.store == nil || !c.isLive() {
		return
	}
	if !c.live.PasswordsRead() && slices.ContainsFunc(objects.Peers, hasPassword) {
		// What was kept may be better.
		return
	}
	generations := slices.Clone(ring.Accepted)
	// The first of a number is found first.
	if i := slices.Index(generations, ring.Sending); i > 0 {
		generations[0], generations[i] = generations[i], generations[0]
	}
	c.mu.Lock()
	c.next = &State{Objects: objects, Generations: generations}
	c.mu.Unlock()
	wake.Notify(c.wake)
}

func hasPassword(peer *millracev1beta1.LBPeer) bool { return peer.Spec.PasswordSecretRef != nil }

// Run writes what is to be kept until ctx is done, and then the rest.
func (c *Checkpointer) Run(ctx context.Context) error {
	if c.store == nil {
		return nil
	}
	var saved *State
	failing := false
	save := func() (took time.Duration) {
		next := c.state()
		if next == nil || saved != nil && sameState(saved, next) {
			return 0
		}
		began := time.Now()
		err := c.store.Save(*next)
		c.tell(err, failing)
		if failing = err != nil; !failing {
			saved = next
		}
		return time.Since(began)
	}
	for {
		select {
		case <-ctx.Done():
			save()
			return ctx.Err()
		case <-c.wake:
		}
		pause := max(shortestSave, saveShare*save())
		if failing {
			pause = saveAgain
			wake.Notify(c.wake)
		}
		wait := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
	}
}

// tell tells that saving begins to fail, or to work again.
func (c *Checkpointer) tell(err error, failing bool) {
	switch {
	case err != nil && !failing:
		c.logger.Error(err, "Objects are not kept for the next agent: look for room and write access in --state-dir; will try again",
			"every", saveAgain)
	case err == nil && failing:
		c.logger.Info("Objects are kept again for the next agent")
	}
}

// sameState reports whether two have the same objects. Objects are never changed, so the same
// pointer is the same object.
func sameState(a, b *State) bool {
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
