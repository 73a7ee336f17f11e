// SPDX-License-Identifier: Apache-2.0

// Package server implements the server of package distribution, which runs in the controller.
//
// The caches of go-control-plane iterate over, copy and compare all resource names for each change and each
// proxy. This package instead represents versions as lists with shared entries (snapshot), and implements the
// protocol for a single type with a wildcard subscription.
package server

import (
	"context"
	"slices"
	"strings"
	"sync"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Identity is the authenticated identity of a proxy.
type Identity struct {
	// Owner is the Gateway or IngressClass that the proxy serves.
	Owner string
	Pod   string
}

// Authenticate returns the identity of a token's holder. Its errors are sent to the proxy and must not
// contain the token.
type Authenticate func(ctx context.Context, token string) (Identity, error)

// Server distributes the resources of each owner to the owner's proxies. It is safe for concurrent use.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	authenticate Authenticate
	// OnAcknowledge is called when the rejections of a proxy may have changed. It may be nil, must not block,
	// and must be set before the server runs.
	OnAcknowledge func()

	mu      sync.Mutex
	owners  map[string]*ownerState
	proxies map[*Proxy]bool
	order   uint64
	// serving is the context of all streams. It is canceled to move proxies to other replicas.
	serving context.Context
	halt    context.CancelFunc
}

type ownerState struct {
	current *snapshot
	// replaced is closed when current is replaced or the owner is removed.
	replaced chan struct{}
}

// Proxy represents a connected proxy.
type Proxy struct {
	Identity
	// Sent is the version of the last response; empty before the first one.
	Sent string
	// Acknowledged is the newest version that the proxy has applied; empty before the first one.
	Acknowledged string
	// Refusal contains the errors of the resources that the proxy rejected in the acknowledged version.
	Refusal string
}

// NewServer returns a server without owners. A proxy of an unknown owner gets an error and retries.
func NewServer(authenticate Authenticate) *Server {
	s := &Server{authenticate: authenticate, owners: map[string]*ownerState{}, proxies: map[*Proxy]bool{}}
	s.serving, s.halt = context.WithCancel(context.Background())
	return s
}

// Advance sets the order of subsequent versions: the highest resourceVersion seen before their objects were
// read.
func (s *Server) Advance(order uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order = order
}

// Suspend ends all streams and rejects new ones until it is called with false. A replica is suspended while
// its configuration may be outdated.
func (s *Server) Suspend(suspended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case suspended:
		s.halt()
	case s.serving.Err() != nil:
		s.serving, s.halt = context.WithCancel(context.Background())
	}
}

// Set replaces the resources of an owner and reports whether they differ. Resources are sorted by name and
// must not be modified afterwards.
func (s *Server) Set(owner string, resources []*resource.Resource) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, known := s.owners[owner]
	if !known {
		of = &ownerState{current: &snapshot{}, replaced: make(chan struct{})}
		s.owners[owner] = of
	}
	entries, same := of.current.with(resources)
	if same && known {
		return false
	}
	s.replace(of, entries)
	return true
}

// Update adds or replaces resources of an existing owner by name, and reports whether any of them changed.
func (s *Server) Update(owner string, resources []*resource.Resource) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.owners[owner]
	if before == nil {
		return false
	}
	entries, same := before.current.replace(resources)
	if !same {
		s.replace(before, entries)
	}
	return !same
}

// replace sets the current snapshot of an owner. The caller holds the mutex.
func (s *Server) replace(of *ownerState, entries []*entry) {
	of.current = &snapshot{order: s.order, entries: entries}
	close(of.replaced)
	of.replaced = make(chan struct{})
}

// Remove removes an owner. Its proxies keep their configuration and reconnect.
func (s *Server) Remove(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.owners[owner]; of != nil {
		delete(s.owners, owner)
		close(of.replaced)
	}
}

// current returns the owner's current snapshot, or nil, and a channel that is closed when the snapshot is
// replaced.
func (s *Server) current(owner string) (*snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.owners[owner]
	if of == nil {
		return nil, nil
	}
	return of.current, of.replaced
}

// Proxies returns the connected proxies, sorted by owner and pod.
func (s *Server) Proxies() []Proxy {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Proxy, 0, len(s.proxies))
	for proxy := range s.proxies {
		all = append(all, *proxy)
	}
	slices.SortFunc(all, func(a, b Proxy) int {
		return strings.Compare(a.Owner+"\x00"+a.Pod, b.Owner+"\x00"+b.Pod)
	})
	return all
}
