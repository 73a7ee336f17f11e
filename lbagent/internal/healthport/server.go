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

const (
	// ProxyGracePeriod is how long the port of the service proxy must be free before this agent serves the
	// health ports. An upgrade of kube-proxy takes a few seconds, and more if its image must be pulled.
	ProxyGracePeriod = 30 * time.Second
	// ProxyPollInterval is the interval for checking the port. A restarted service proxy listens on it before it
	// opens the health ports of Services.
	ProxyPollInterval = 500 * time.Millisecond
	// RetryInterval is the interval for retrying a port that another process uses.
	RetryInterval = 10 * time.Second
)

// maxConnections bounds the connections of untrusted clients to a port. A few load balancers need a few.
const maxConnections = 256

// Config configures a Server.
type Config struct {
	// ProxyPort is the TCP port of the service proxy's health check. While a process listens on it,
	// health ports are left to that proxy. Zero disables the check.
	ProxyPort uint16
	// GracePeriod is how long ProxyPort must be free before health ports are opened: longer than a restart
	// of the service proxy.
	GracePeriod time.Duration
	// PollInterval is the interval for checking ProxyPort, and RetryInterval the interval for retrying a port that
	// another process uses.
	PollInterval, RetryInterval time.Duration
	Alive                       func() error
	Logger                      logr.Logger
}

// Server serves health ports. The kernel gives a port to one process only, so a node never has two
// responders. A service proxy has precedence, because it logs an error for each port that it cannot open.
type Server struct {
	config Config
	wake   chan struct{}

	mu       sync.Mutex
	want     map[Key]Check
	forwards bool

	// The following fields are used by Run only.
	open map[Key]*http.Server
	// refused is the time of the next attempt for a port that another process uses.
	refused     map[Key]time.Time
	seen        time.Time
	proxyAbsent bool
}

// New returns a Server without open ports.
func New(config Config) *Server {
	return &Server{
		config: config, wake: make(chan struct{}, 1),
		open: map[Key]*http.Server{}, refused: map[Key]time.Time{},
	}
}

// Set sets the checks to serve, and whether the node forwards packets. A nil Server serves none.
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
	ticker := time.NewTicker(s.config.PollInterval)
	defer ticker.Stop()
	defer s.closeAll()
	// A service proxy that starts at the same time has precedence, too.
	s.seen, s.proxyAbsent = time.Now(), true
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

func (s *Server) update(ctx context.Context, now time.Time) {
	s.mu.Lock()
	want := s.want
	s.mu.Unlock()
	if len(want) == 0 || s.isProxyAbsent(now) {
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

func (s *Server) isProxyAbsent(now time.Time) bool {
	if s.config.ProxyPort == 0 {
		return false
	}
	there, err := listening(s.config.ProxyPort)
	if err != nil {
		s.config.Logger.Error(err, "Could not detect the service proxy: healthCheckNodePorts are left to it")
	}
	if there || err != nil {
		s.seen = now
	}
	left := now.Sub(s.seen) < s.config.GracePeriod
	if left != s.proxyAbsent {
		s.config.Logger.Info("The server of healthCheckNodePorts has changed", "serviceProxy", left, "proxyPort", s.config.ProxyPort)
	}
	s.proxyAbsent = left
	return left
}

// listen opens a port. On Linux, SO_REUSEADDR, which Go sets, does not permit two listeners on a port; it
// avoids waiting for closed connections.
func (s *Server) listen(ctx context.Context, key Key, now time.Time) {
	network := "tcp4"
	if key.IPv6 {
		network = "tcp6"
	}
	address := net.JoinHostPort("", strconv.Itoa(int(key.Port)))
	listener, err := (&net.ListenConfig{}).Listen(ctx, network, address)
	if err != nil {
		if _, again := s.refused[key]; !again {
			s.config.Logger.Info("Could not listen on a healthCheckNodePort; will retry",
				"network", network, "port", key.Port, "after", s.config.RetryInterval, "reason", err.Error())
		}
		s.refused[key] = now.Add(s.config.RetryInterval)
		return
	}
	delete(s.refused, key)
	server := serving.NewHTTP(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { s.serveCheck(w, key) }))
	s.open[key] = server
	go func() {
		if err := server.Serve(serving.Limit(listener, serving.Limits{Connections: maxConnections})); !errors.Is(err, http.ErrServerClosed) {
			s.config.Logger.Error(err, "A healthCheckNodePort is no longer served", "network", network, "port", key.Port)
		}
	}()
}

func (s *Server) closeAll() {
	for key, server := range s.open {
		_ = server.Close()
		delete(s.open, key)
	}
	clear(s.refused)
}

type response struct {
	Service             service `json:"service"`
	LocalEndpoints      int     `json:"localEndpoints"`
	ServiceProxyHealthy bool    `json:"serviceProxyHealthy"`
}

type service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// serveCheck responds at any path like kube-proxy (k8s.io/kubernetes/pkg/proxy/healthcheck): 200 if a pod on
// this node is ready and the node forwards, else 503.
func (s *Server) serveCheck(w http.ResponseWriter, key Key) {
	s.mu.Lock()
	check, forwards := s.want[key], s.forwards
	s.mu.Unlock()
	healthy := forwards && s.config.Alive() == nil
	body, err := json.MarshalIndent(response{
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
