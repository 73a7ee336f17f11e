// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

type saves struct {
	mu    sync.Mutex
	all   []State
	fails bool
	takes time.Duration
}

func (s *saves) Save(state State) error {
	time.Sleep(s.takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails {
		return errors.New("injected")
	}
	s.all = append(s.all, state)
	return nil
}

func (s *saves) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

type apiServer struct {
	objects       *model.Snapshot
	synced        chan struct{}
	passwordsRead bool
}

func (a *apiServer) Snapshot() *model.Snapshot { copied := *a.objects; return &copied }
func (a *apiServer) Synced() <-chan struct{}   { return a.synced }
func (a *apiServer) PasswordsRead() bool       { return a.passwordsRead }

func newCheckpointer(live *model.Snapshot, before *State, store store) (*Checkpointer, *apiServer) {
	api := &apiServer{objects: live, synced: make(chan struct{}), passwordsRead: true}
	return &Checkpointer{live: api, previous: before, store: store, logger: logr.Discard(), wake: make(chan struct{}, 1)}, api
}

func cluster() *model.Snapshot {
	return &model.Snapshot{
		LBNodes: []*millracev1beta1.LBNode{{}, {}},
		Peers:   []*millracev1beta1.LBPeer{{}},
	}
}

// TestStartTimeout checks that an agent without the API server uses the checkpoint after Patience, and waits
// without a checkpoint.
func TestStartTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, api := newCheckpointer(cluster(), &State{Objects: cluster(), Generations: []uint32{300}}, nil)
		began := time.Now()
		if err := m.Await(t.Context()); err != nil || time.Since(began) != StartTimeout {
			t.Errorf("waited %s, error %v; want %s", time.Since(began), err, StartTimeout)
		}
		if objects := m.Objects(); !errors.Is(objects.TunnelKey.Err, errNotRead) || len(objects.LBNodes) != 2 {
			t.Errorf("Objects = %+v", objects)
		}
		if m.previous.Objects.TunnelKey.Err != nil || m.Generations()[0] != 300 {
			t.Error("the checkpoint was modified")
		}
		close(api.synced)
		if objects := m.Objects(); objects.TunnelKey.Err != nil {
			t.Error("still uses the checkpoint although the API server responds")
		}

		m, api = newCheckpointer(cluster(), nil, nil)
		go func() {
			time.Sleep(time.Hour)
			close(api.synced)
		}()
		began = time.Now()
		if err := m.Await(t.Context()); err != nil || time.Since(began) != time.Hour {
			t.Errorf("waited %s, error %v; want an hour", time.Since(began), err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		m, _ = newCheckpointer(cluster(), nil, nil)
		if err := m.Await(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled agent: %v", err)
		}
	})
}

func TestPreviousPasswords(t *testing.T) {
	before := cluster()
	before.Passwords = map[string]string{"tor": "old"}
	live := cluster()
	live.Peers[0].Spec.PasswordSecretRef = &millracev1beta1.SecretReference{Name: "tor"}
	store := &saves{}
	m, api := newCheckpointer(live, &State{Objects: before}, store)
	api.passwordsRead = false
	close(api.synced)
	if got := m.Objects().Passwords["tor"]; got != "old" {
		t.Errorf("password %q before the Secrets were read, want the old password", got)
	}
	m.Update(live, tunnelkey.Ring{})
	if m.next != nil {
		t.Error("the checkpoint was saved without the passwords")
	}
	api.passwordsRead = true
	live.Passwords = map[string]string{"tor": "new"}
	if got := m.Objects().Passwords["tor"]; got != "new" {
		t.Errorf("password %q, want the new password", got)
	}
	m.Update(live, tunnelkey.Ring{})
	if m.next == nil {
		t.Error("the checkpoint was not stored")
	}
}

// TestSaveOnlyChanges checks that unchanged objects are saved once, that the last ones are saved at the end, that
// slow writes are rare, and that the loaded state is not written back.
func TestSaveOnlyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &saves{takes: 100 * time.Millisecond}
		m, api := newCheckpointer(cluster(), &State{Objects: cluster()}, store)
		m.Update(cluster(), tunnelkey.Ring{})
		if m.next != nil {
			t.Error("the checkpoint was written again without a change")
		}
		close(api.synced)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.Run(ctx) }()
		objects := cluster()
		for range 100 {
			copied := *objects
			m.Update(&copied, tunnelkey.Ring{Accepted: []uint32{3, 4}, Sending: 4})
			time.Sleep(saveShare * store.takes)
		}
		if got := store.count(); got != 1 {
			t.Errorf("unchanged objects were written %d times, want 1", got)
		}
		if got := store.all[0].Generations; len(got) != 2 || got[0] != 4 {
			t.Errorf("generations %v, want the sending key first", got)
		}
		for range 100 {
			changed := *objects
			changed.Services = []*corev1.Service{{}}
			m.Update(&changed, tunnelkey.Ring{})
			time.Sleep(saveShare * store.takes / 10)
		}
		if got := store.count(); got < 9 || got > 12 {
			t.Errorf("%d writes within 10 times %d write durations", got, saveShare)
		}
		last := *objects
		last.Peers = nil
		m.Update(&last, tunnelkey.Ring{})
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("returned %v, want context.Canceled", err)
		}
		if got := store.all[len(store.all)-1].Objects.Peers; got != nil {
			t.Errorf("stored peers %v, want the latest", got)
		}
	})
}

func TestSaveFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &saves{fails: true}
		m, api := newCheckpointer(cluster(), nil, store)
		close(api.synced)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.Run(ctx) }()
		objects := cluster()
		m.Update(objects, tunnelkey.Ring{})
		time.Sleep(time.Second)
		store.mu.Lock()
		store.fails = false
		store.mu.Unlock()
		time.Sleep(saveRetry)
		if store.count() != 1 {
			t.Errorf("%d writes, want 1", store.count())
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestKnownNodesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &saves{}
		m, api := newCheckpointer(cluster(), nil, store)
		close(api.synced)
		var known []membership.Known
		m.SetNodes(func() []membership.Known { return known })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = m.Run(ctx)
		}()
		settle := func() {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		m.Touch()
		settle()
		if store.count() != 0 {
			t.Error("saved before any object was received")
		}
		m.Update(cluster(), tunnelkey.Ring{})
		settle()
		known = []membership.Known{{ID: 2}}
		m.Touch()
		settle()
		m.Touch()
		settle()
		if store.count() != 2 {
			t.Fatalf("saved %d times, want 2", store.count())
		}
		known = []membership.Known{{ID: 2, Lost: time.Now()}}
		cancel()
		<-ended
		if last := store.all[len(store.all)-1]; len(last.Nodes) != 1 || last.Nodes[0].Lost.IsZero() {
			t.Errorf("last saved nodes: %+v", last.Nodes)
		}
	})
}
