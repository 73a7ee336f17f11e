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
	"github.com/millrace-lb/millrace/lbagent/internal/notify"
)

const (
	// StartTimeout is how long a starting agent waits for the API server before it uses the checkpoint. Routers
	// keep the routes far longer.
	StartTimeout = 3 * time.Second
	// minSaveInterval is the minimum interval between two checkpoints. The interval is at least saveShare
	// times the duration of a write, so that writing takes at most 2 % of a CPU.
	minSaveInterval = 250 * time.Millisecond
	saveShare       = 50
	saveRetry       = 30 * time.Second
)

// Objects reads the objects of the API server.
type Objects interface {
	Snapshot() *model.Snapshot
	Synced() <-chan struct{}
	PasswordsRead() bool
}

// Checkpointer provides the objects for passes: the ones of the API server or, until all are listed, the
// ones that the previous agent saved. A nil Checkpointer saves nothing.
type Checkpointer struct {
	live     Objects
	previous *State
	store    store
	logger   logr.Logger
	// knownNodes returns the nodes that have answered probes; nil if nodes are not probed.
	knownNodes func() []membership.Known

	wake chan struct{}
	mu   sync.Mutex
	next *State
}

type store interface {
	Save(state State) error
}

// Config configures a Checkpointer.
type Config struct {
	Directory string
	// BootID and Node identify a checkpoint; others are ignored.
	BootID, Node string
	// Unforwarded is true if nothing was forwarded before this agent, which makes the checkpoint
	// unnecessary.
	Unforwarded bool
	Logger      logr.Logger
}

// NewCheckpointer reads the checkpoint. Errors are only logged.
func NewCheckpointer(live Objects, config Config) *Checkpointer {
	c := &Checkpointer{live: live, logger: config.Logger, wake: make(chan struct{}, 1)}
	if config.Directory == "" {
		return c
	}
	store, err := Open(config.Directory, config.BootID, config.Node)
	if err != nil {
		c.logger.Error(err, "No checkpoint is written: an agent that starts without the API server waits for it")
		return c
	}
	c.store = store
	before, err := store.Load()
	switch {
	case err != nil:
		c.logger.Error(err, "The checkpoint of the previous agent is not used")
	case config.Unforwarded:
	default:
		c.previous = before
	}
	return c
}

// SetNodes adds the nodes that have answered probes to the saved state.
func (c *Checkpointer) SetNodes(known func() []membership.Known) { c.knownNodes = known }

// Await waits until objects are available.
func (c *Checkpointer) Await(ctx context.Context) error {
	var late <-chan time.Time
	if c.previous != nil {
		timer := time.NewTimer(StartTimeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.live.Synced():
	case <-late:
		c.logger.Info("No response from the API server: continuing with the checkpoint of the previous agent",
			"services", len(c.previous.Objects.Services), "peers", len(c.previous.Objects.Peers))
	}
	return nil
}

var errNotRead = errors.New("no response from the API server since this agent started")

func (c *Checkpointer) isLive() bool {
	select {
	case <-c.live.Synced():
		return true
	default:
		return c.previous == nil
	}
}

// Objects returns the objects for a pass.
func (c *Checkpointer) Objects() *model.Snapshot {
	if c.isLive() {
		objects := c.live.Snapshot()
		if c.previous != nil && !c.live.PasswordsRead() {
			// Without its password a session would end.
			objects.Passwords = c.previous.Objects.Passwords
		}
		return objects
	}
	objects := *c.previous.Objects
	objects.TunnelKey.Err = errNotRead
	return &objects
}

// Previous returns the objects of the previous agent, or nil.
func (c *Checkpointer) Previous() *model.Snapshot {
	if c.previous == nil {
		return nil
	}
	return c.previous.Objects
}

// Generations returns the generations of the tunnel keys of the previous agent.
func (c *Checkpointer) Generations() []uint32 {
	if c.previous == nil {
		return nil
	}
	return c.previous.Generations
}

// Nodes returns the nodes that answered probes of the previous agent.
func (c *Checkpointer) Nodes() []membership.Known {
	if c.previous == nil {
		return nil
	}
	return c.previous.Nodes
}

// Touch schedules a checkpoint after a change of the known nodes.
func (c *Checkpointer) Touch() { notify.Signal(c.wake) }

func (c *Checkpointer) state() *State {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		return nil
	}
	state := *c.next
	if c.knownNodes != nil {
		state.Nodes = c.knownNodes()
	}
	return &state
}

// Update schedules saving the objects of a pass and the generations of the node's tunnel keys.
func (c *Checkpointer) Update(objects *model.Snapshot, ring tunnelkey.Ring) {
	if c == nil || c.store == nil || !c.isLive() {
		return
	}
	if !c.live.PasswordsRead() && slices.ContainsFunc(objects.Peers, hasPassword) {
		// The passwords in the checkpoint may be more complete.
		return
	}
	generations := slices.Clone(ring.Accepted)
	// Lookups by a partial number find the first match.
	if i := slices.Index(generations, ring.Sending); i > 0 {
		generations[0], generations[i] = generations[i], generations[0]
	}
	c.mu.Lock()
	c.next = &State{Objects: objects, Generations: generations}
	c.mu.Unlock()
	notify.Signal(c.wake)
}

func hasPassword(peer *millracev1beta1.LBPeer) bool { return peer.Spec.PasswordSecretRef != nil }

// Run writes checkpoints until ctx is done, and then the last one.
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
		c.logResult(err, failing)
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
		pause := max(minSaveInterval, saveShare*save())
		if failing {
			pause = saveRetry
			notify.Signal(c.wake)
		}
		wait := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
		wait.Stop()
	}
}

func (c *Checkpointer) logResult(err error, failing bool) {
	switch {
	case err != nil && !failing:
		c.logger.Error(err, "Could not write the checkpoint: check free space and write access in --state-dir; will retry",
			"every", saveRetry)
	case err == nil && failing:
		c.logger.Info("The checkpoint is written again")
	}
}

// sameState compares pointers, because objects are immutable.
func sameState(a, b *State) bool {
	x, y := a.Objects, b.Objects
	return x.Node == y.Node && maps.Equal(x.Passwords, y.Passwords) && slices.Equal(a.Generations, b.Generations) &&
		slices.Equal(a.Nodes, b.Nodes) &&
		sameObjects(x.Services, y.Services) && sameObjects(x.EndpointSlices, y.EndpointSlices) &&
		sameObjects(x.VIPs, y.VIPs) && sameObjects(x.Pools, y.Pools) && sameObjects(x.LBNodes, y.LBNodes) &&
		sameObjects(x.Peers, y.Peers) && sameObjects(x.Advertisements, y.Advertisements) && sameObjects(x.Routes, y.Routes)
}

// sameObjects ignores the order.
func sameObjects[T comparable](a, b []T) bool {
	came, went := delta.Between(a, b)
	return len(came)+len(went) == 0
}
