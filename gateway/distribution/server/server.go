// SPDX-License-Identifier: Apache-2.0

// Package server serves the configuration of proxies: package distribution, the
// controller's end.
//
// The caches of go-control-plane walk, copy and compare the names of all resources for each
// change and each proxy. So this package keeps versions as lists that share what they have in
// common (snapshot), and speaks the protocol itself: one type, and always all of it.
package server

import (
	"context"
	"slices"
	"strings"
	"sync"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// Identity is who a proxy has proved to be.
type Identity struct {
	// Owner is the Gateway or IngressClass whose configuration the proxy gets.
	Owner string
	// Pod is the proxy itself: "namespace/name".
	Pod string
}

// Authenticate returns who holds the token. Its error is told to the proxy: it must not
// repeat the token.
type Authenticate func(ctx context.Context, token string) (Identity, error)

// Server serves each owner's resources to the proxies of this owner. Safe for concurrent use.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	authenticate Authenticate
	// Answered is called when what Proxies says of refusals may have changed; nil: nobody wants to
	// know. It must not block, and is to be set before the server runs.
	Answered func()

	mu     sync.Mutex
	owners map[string]*owned
	// proxies are those with a stream now.
	proxies map[*Proxy]bool
	// order is that of the next versions.
	order uint64
	// serving ends when proxies are to go to other controllers, by halt.
	serving context.Context
	halt    context.CancelFunc
}

// owned is what one owner's proxies get.
type owned struct {
	current *snapshot
	// replaced is closed when there is another snapshot, or none any more.
	replaced chan struct{}
}

// Proxy is one that is connected.
type Proxy struct {
	Identity
	// Sent is the version of the last response to the proxy, empty before the first.
	Sent string
	// Acknowledged is the newest version that the proxy serves, empty before the first.
	Acknowledged string
	// Refusal is why the proxy goes on with an older version, empty where it does not.
	Refusal string
	// Refused are the resources of the acknowledged version that the proxy does not carry out; nil:
	// it carries out all. Never change it.
	Refused *resource.Refusals
}

// NewServer returns a server without owners: their proxies are told to try again.
func NewServer(authenticate Authenticate) *Server {
	s := &Server{authenticate: authenticate, owners: map[string]*owned{}, proxies: map[*Proxy]bool{}}
	s.serving, s.halt = context.WithCancel(context.Background())
	return s
}

// Advance sets the order of the versions from now on: the highest resourceVersion that was seen
// before the objects were read from which they are made.
func (s *Server) Advance(order uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order = order
}

// Suspend ends the streams of all proxies and refuses new ones, until it is called with false. What
// this controller has is then too old to serve.
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

// Set makes these the owner's resources, sorted by name. They may not change afterwards. Only
// what differs is sent; reports whether anything did.
func (s *Server) Set(owner string, resources []*resource.Resource) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, known := s.owners[owner]
	if !known {
		of = &owned{current: &snapshot{}, replaced: make(chan struct{})}
		s.owners[owner] = of
	}
	entries, same := of.current.with(resources)
	if same && known {
		return false
	}
	s.replace(of, entries)
	return true
}

// Update puts resources in the place of those with their names; all others stay. Where the
// owner is not known, nothing happens.
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

// replace makes entries the owner's newest version. The mutex is held.
func (s *Server) replace(of *owned, entries []*entry) {
	of.current = &snapshot{order: s.order, entries: entries}
	close(of.replaced)
	of.replaced = make(chan struct{})
}

// Remove forgets the owner. Proxies of it keep what they have, and ask again.
func (s *Server) Remove(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.owners[owner]; of != nil {
		delete(s.owners, owner)
		close(of.replaced)
	}
}

// current returns the newest version of the owner's configuration, nil where there is none.
// The channel is closed when it is no longer the newest.
func (s *Server) current(owner string) (*snapshot, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.owners[owner]
	if of == nil {
		return nil, nil
	}
	return of.current, of.replaced
}

// Proxies returns the proxies that are connected, ordered by owner and pod.
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
