// SPDX-License-Identifier: Apache-2.0

// Package server serves the configuration of proxies: package distribution, the
// controller's end.
package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	xds "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/millrace-lb/millrace/gateway/distribution"
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
	authenticate Authenticate

	mu     sync.Mutex
	owners map[string]*owned
	// proxies are those with a stream now, by stream.
	proxies map[int64]*Proxy
}

// owned is what one owner's proxies get.
type owned struct {
	cache     *cache.LinearCache
	resources map[string]*resource.Resource
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

	// nonce is that of the last response.
	nonce string
}

// NewServer returns a server without owners: their proxies are told to try again.
func NewServer(authenticate Authenticate) *Server {
	return &Server{authenticate: authenticate, owners: map[string]*owned{}, proxies: map[int64]*Proxy{}}
}

// Set makes these the owner's resources, by name. The server keeps the map; neither it nor
// the resources may change afterwards. Only what differs is sent; reports whether
// anything did.
func (s *Server) Set(owner string, resources map[string]*resource.Resource) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.owners[owner]
	if !known {
		all := make(map[string]types.Resource, len(resources))
		for name, r := range resources {
			all[name] = r
		}
		s.owners[owner] = &owned{
			cache:     cache.NewLinearCache(distribution.TypeURL, cache.WithInitialResources(all)),
			resources: resources,
		}
		return true, nil
	}
	changed, removed := difference(before.resources, resources)
	if len(changed) == 0 && len(removed) == 0 {
		return false, nil
	}
	before.resources = resources
	if err := before.cache.UpdateResources(changed, removed); err != nil {
		return true, fmt.Errorf("serve the resources of %s: %w", owner, err)
	}
	return true, nil
}

// difference returns the resources that are new or not as before, and the names of those
// that are gone.
func difference(before, after map[string]*resource.Resource) (changed map[string]types.Resource, removed []string) {
	changed = map[string]types.Resource{}
	for name, r := range after {
		if old, known := before[name]; !known || old != r && !proto.Equal(old, r) {
			changed[name] = r
		}
	}
	for name := range before {
		if _, kept := after[name]; !kept {
			removed = append(removed, name)
		}
	}
	return changed, removed
}

// Remove forgets the owner. Proxies of it that are connected keep what they have.
func (s *Server) Remove(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.owners, owner)
}

// Proxies returns the proxies that are connected, ordered by owner and pod.
func (s *Server) Proxies() []Proxy {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Proxy, 0, len(s.proxies))
	for _, proxy := range s.proxies {
		all = append(all, *proxy)
	}
	slices.SortFunc(all, func(a, b Proxy) int {
		return strings.Compare(a.Owner+"\x00"+a.Pod, b.Owner+"\x00"+b.Pod)
	})
	return all
}

// Resources returns the owner's resources by name, to be read only.
func (s *Server) Resources(owner string) map[string]*resource.Resource {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of := s.owners[owner]; of != nil {
		return maps.Clone(of.resources)
	}
	return nil
}

// cacheOf returns what is served to the owner's proxies.
func (s *Server) cacheOf(owner string) (*cache.LinearCache, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, known := s.owners[owner]
	if !known {
		return nil, status.Errorf(codes.Unavailable, "there is no configuration for %s: it does not exist or is not compiled yet", owner)
	}
	return of.cache, nil
}

// handler returns the xDS service. It ends with the context.
func (s *Server) handler(ctx context.Context) discovery.AggregatedDiscoveryServiceServer {
	return xds.NewServer(ctx, watcher{s}, callbacks(s))
}

// watcher chooses the cache by the node id, which authentication has set to the owner.
type watcher struct{ server *Server }

// CreateWatch refuses: proxies speak the delta protocol only.
func (watcher) CreateWatch(*cache.Request, cache.Subscription, chan cache.Response) (func(), error) {
	return nil, status.Error(codes.Unimplemented, "only the delta protocol is served")
}

// Fetch refuses, like CreateWatch.
func (watcher) Fetch(context.Context, *cache.Request) (cache.Response, error) {
	return nil, errors.New("only the delta protocol is served")
}

// CreateDeltaWatch watches the owner's cache.
func (w watcher) CreateDeltaWatch(
	request *cache.DeltaRequest, subscription cache.Subscription, responses chan cache.DeltaResponse,
) (func(), error) {
	if request.GetTypeUrl() != distribution.TypeURL {
		return nil, status.Errorf(codes.InvalidArgument, "type %q is not served, only %q", request.GetTypeUrl(), distribution.TypeURL)
	}
	of, err := w.server.cacheOf(request.GetNode().GetId())
	if err != nil {
		return nil, err
	}
	return of.CreateDeltaWatch(request, subscription, responses)
}
