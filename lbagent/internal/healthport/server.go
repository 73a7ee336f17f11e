// SPDX-License-Identifier: Apache-2.0

package healthport

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/serving"
)

// What an agent works with, but for tests.
const (
	// ProxyPatience is how long nobody has to be at the port of the service proxy before its work is
	// done: an upgrade of kube-proxy takes a few seconds, and more where its image is not there yet.
	ProxyPatience = 30 * time.Second
	// ProxyPause is how often that is looked at. A service proxy that comes back listens there
	// before it asks for the ports of Services.
	ProxyPause = 500 * time.Millisecond
	// Retry is how often a port is tried that somebody else has.
	Retry = 10 * time.Second
)

// maxConnections bounds what untrusted clients can make a port keep: a few load balancers need a few.
const maxConnections = 256

// Config is how a Server works.
type Config struct {
	// ProxyPort is the TCP port at which the node's service proxy tells its health. While anybody
	// listens there, the ports are its. Zero: nobody is looked for.
	ProxyPort uint16
	// Patience is how long nobody has to listen there before ports are opened: longer than a
	// service proxy takes to start again.
	Patience time.Duration
	// Pause is how often that is looked at, and Retry how often a port that somebody else has.
	Pause, Retry time.Duration
	// Alive returns why the agent does not do its work; nil where it does.
	Alive  func() error
	Logger logr.Logger
}

// Server answers at ports. Only who listens at a port answers there: the kernel gives it to one, so
// a node never has two. A service proxy goes first, because it complains of each port that it does
// not get.
type Server struct {
	config Config
	wake   chan struct{}

	mu       sync.Mutex
	want     map[Key]Check
	forwards bool

	// Only Run uses these.
	open map[Key]*http.Server
	// refused says when a port that somebody else has is tried again.
	refused map[Key]time.Time
	// seen is when a service proxy was there last.
	seen time.Time
	// left is true while the ports are left to it.
	left bool
}

// New returns a Server, which opens nothing before Run.
func New(config Config) *Server {
	return &Server{
		config: config, wake: make(chan struct{}, 1),
		open: map[Key]*http.Server{}, refused: map[Key]time.Time{},
	}
}

// Set says which checks are answered, and whether the node forwards packets. A nil Server answers
// none.
func (s *Server) Set(want map[Key]Check, forwards bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.want, s.forwards = want, forwards
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run opens and closes ports until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	ticker := time.NewTicker(s.config.Pause)
	defer ticker.Stop()
	defer s.closeAll()
	// Who starts together with us goes first, too.
	s.seen, s.left = time.Now(), true
	for {
		s.update(ctx, time.Now())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.wake:
		case <-ticker.C:
		}
	}
}

// update brings the open ports in line with what is wanted.
func (s *Server) update(ctx context.Context, now time.Time) {
	s.mu.Lock()
	want := s.want
	s.mu.Unlock()
	if len(want) == 0 || s.isLeft(now) {
		s.closeAll()
		return
	}
	for key, server := range s.open {
		if _, wanted := want[key]; !wanted {
			_ = server.Close()
			delete(s.open, key)
		}
	}
	for key := range want {
		if s.open[key] == nil && !now.Before(s.refused[key]) {
			s.listen(ctx, key, now)
		}
	}
}

// isLeft reports whether the ports are left to a service proxy.
func (s *Server) isLeft(now time.Time) bool {
	if s.config.ProxyPort == 0 {
		return false
	}
	there, err := listening(s.config.ProxyPort)
	if err != nil {
		s.config.Logger.Error(err, "It is not known whether a service proxy runs: healthCheckNodePorts are left to it")
	}
	if there || err != nil {
		s.seen = now
	}
	left := now.Sub(s.seen) < s.config.Patience
	if left != s.left {
		s.config.Logger.Info("Who answers at healthCheckNodePorts has changed", "serviceProxy", left, "proxyPort", s.config.ProxyPort)
	}
	s.left = left
	return left
}

// listen opens a port. SO_REUSEADDR, which Go sets, lets nobody listen beside another on Linux. It
// saves waiting for connections that are closed.
func (s *Server) listen(ctx context.Context, key Key, now time.Time) {
	network := "tcp4"
	if key.IPv6 {
		network = "tcp6"
	}
	address := net.JoinHostPort("", strconv.Itoa(int(key.Port)))
	listener, err := (&net.ListenConfig{}).Listen(ctx, network, address)
	if err != nil {
		if _, again := s.refused[key]; !again {
			s.config.Logger.Info("Somebody else has a healthCheckNodePort, or it cannot be had: it is tried again",
				"network", network, "port", key.Port, "after", s.config.Retry, "reason", err.Error())
		}
		s.refused[key] = now.Add(s.config.Retry)
		return
	}
	delete(s.refused, key)
	server := serving.NewHTTP(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { s.answer(w, key) }))
	s.open[key] = server
	go func() {
		if err := server.Serve(serving.Limit(listener, serving.Limits{Connections: maxConnections})); !errors.Is(err, http.ErrServerClosed) {
			s.config.Logger.Error(err, "A healthCheckNodePort is not served any more", "network", network, "port", key.Port)
		}
	}()
}

// closeAll closes all ports.
func (s *Server) closeAll() {
	for key, server := range s.open {
		_ = server.Close()
		delete(s.open, key)
	}
	clear(s.refused)
}

// answer is the body of an answer, as kube-proxy gives it.
type answer struct {
	Service             service `json:"service"`
	LocalEndpoints      int     `json:"localEndpoints"`
	ServiceProxyHealthy bool    `json:"serviceProxyHealthy"`
}

type service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// answer answers at any path as kube-proxy does (k8s.io/kubernetes/pkg/proxy/healthcheck): 200 where
// a pod on this node is ready and the node forwards, else 503.
func (s *Server) answer(w http.ResponseWriter, key Key) {
	s.mu.Lock()
	check, forwards := s.want[key], s.forwards
	s.mu.Unlock()
	healthy := forwards && s.config.Alive() == nil
	body, err := json.MarshalIndent(answer{
		Service:        service{check.Service.Namespace, check.Service.Name},
		LocalEndpoints: check.Endpoints, ServiceProxyHealthy: healthy,
	}, "", "\t")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(check.Endpoints))
	if check.Endpoints == 0 || !healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(body)
}
