// SPDX-License-Identifier: Apache-2.0

// Package serving provides listeners and HTTP servers with bounds on connections, headers, bodies and time,
// so that clients without credentials cannot exhaust the memory of a program.
package serving

import (
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// MaxHeaderBytes limits a request's header; tokens of ServiceAccounts take 1 to 2 KiB.
const MaxHeaderBytes = 16 << 10

// Local returns the limits of a port for probes and metrics, which have few clients.
func Local() Limits { return Limits{Connections: 64, PerSource: 16} }

// NewHTTP returns an HTTP/1.1 server with timeouts that include the TLS handshake. HTTP/2 is disabled,
// because one connection could carry many requests.
func NewHTTP(handler http.Handler) *http.Server {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:           handler,
		Protocols:         protocols,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    MaxHeaderBytes,
	}
}

// Requests limits the requests that a handler serves concurrently, and their bodies.
type Requests struct {
	BodyBytes int64
	InFlight  int64
	// PerSource is the maximum number of concurrent requests of one source: an IPv4 address or an IPv6 /64.
	PerSource int64
}

// LimitRequests wraps a handler. Requests beyond the limits wait before their bodies are read, and reads of a
// body beyond BodyBytes fail.
func LimitRequests(handler http.Handler, limits Requests) http.Handler {
	all := semaphore.NewWeighted(limits.InFlight)
	sources := &semaphores{size: limits.PerSource, of: map[netip.Prefix]*shared{}}
	limited := http.MaxBytesHandler(handler, limits.BodyBytes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		source := sourceOf(address(r.RemoteAddr))
		own := sources.get(source)
		defer sources.put(source)
		for _, each := range []*semaphore.Weighted{own, all} {
			if err := each.Acquire(r.Context(), 1); err != nil {
				http.Error(w, "too many requests in flight", http.StatusServiceUnavailable)
				return
			}
			defer each.Release(1)
		}
		limited.ServeHTTP(w, r)
	})
}

type semaphores struct {
	size int64

	mu sync.Mutex
	of map[netip.Prefix]*shared
}

// shared is a semaphore with the number of requests that hold it or wait for it.
type shared struct {
	semaphore *semaphore.Weighted
	users     int
}

func (s *semaphores) get(source netip.Prefix) *semaphore.Weighted {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.of[source]
	if found == nil {
		found = &shared{semaphore: semaphore.NewWeighted(s.size)}
		s.of[source] = found
	}
	found.users++
	return found.semaphore
}

func (s *semaphores) put(source netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[source].users--; s.of[source].users == 0 {
		delete(s.of, source)
	}
}

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }
