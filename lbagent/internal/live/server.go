// SPDX-License-Identifier: Apache-2.0

// Package live serves the aggregated API over HTTPS (package api/live): changes of counters and of the
// state since the previous request, flows and drops. Both sides authenticate by certificates.
package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/console"
	liveapi "github.com/millrace-lb/millrace/api/live"
)

const (
	handshakeTime = 5 * time.Second
	// idleTime is longer than the pause of a reader between two requests.
	idleTime = 2 * time.Minute
)

// Source provides the state of the agent. Its methods may be called at any time.
type Source interface {
	Node() string
	Counters() (*console.Counters, error)
	// VIPs returns the decisions about all VIPs, or nil if they are not later than at.
	VIPs(at time.Time) (*console.VIPs, error)
	Sessions() []console.BGPPeer
	Drops() []console.Drop
	// Flows returns up to limit flows of a Service (namespace/name) with a client in the prefix, or with
	// any client if the prefix is invalid. more reports whether there are others.
	Flows(service string, clients netip.Prefix, limit int) (flows []liveapi.Flow, more bool, err error)
}

// Server serves clients with a valid certificate.
type Server struct {
	source  Source
	traffic *sampler
	state   *journal
	// walking is held by the one request for flows that is being served.
	walking sync.Mutex
	logger  logr.Logger
}

// NewServer returns a server of the source's state.
func NewServer(source Source, logger logr.Logger) *Server {
	return &Server{
		source: source, traffic: newSampler(source.Counters), state: newJournal(source.VIPs, source.Sessions), logger: logger,
	}
}

// Serve serves requests until ctx is done. The certificate files may appear later and be replaced: each
// handshake uses the current ones.
func (s *Server) Serve(ctx context.Context, listener net.Listener, certificates *Certificates) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { s.traffic.run(ctx) })
	server := &http.Server{
		Handler:           s.handler(),
		TLSConfig:         certificates.Config(),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: handshakeTime,
		WriteTimeout:      liveapi.WaitLimit + time.Minute,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    8 << 10,
		// Untrusted hosts can cause any number of failed handshakes.
		ErrorLog: log.New(logWriter{s.logger}, "", 0),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	err := server.ServeTLS(listener, "", "")
	if errors.Is(err, http.ErrServerClosed) {
		return ctx.Err()
	}
	return fmt.Errorf("serve the aggregated API on %s: %w", listener.Addr(), err)
}

type logWriter struct{ logger logr.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	w.logger.V(1).Info(strings.TrimSpace(string(line)))
	return len(line), nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for path, answer := range map[string]func(*http.Request) (any, error){
		liveapi.PathTraffic: s.answerTraffic,
		liveapi.PathState:   s.answerState,
		liveapi.PathFlows:   s.answerFlows,
		liveapi.PathDrops:   s.answerDrops,
	} {
		mux.HandleFunc("GET "+path, func(response http.ResponseWriter, request *http.Request) {
			body, err := answer(request)
			if refusal := (refused{}); errors.As(err, &refusal) {
				http.Error(response, refusal.Error(), http.StatusBadRequest)
				return
			}
			if err != nil {
				http.Error(response, err.Error(), http.StatusServiceUnavailable)
				return
			}
			encoded, kind, err := encode(body)
			if err != nil {
				http.Error(response, err.Error(), http.StatusInternalServerError)
				return
			}
			response.Header().Set("Content-Type", kind)
			// Only the connection can fail here, and the client detects that.
			_ = liveapi.WriteBody(response, encoded)
		})
	}
	return mux
}

func encode(body any) (encoded []byte, kind string, err error) {
	if traffic, is := body.(*liveapi.Traffic); is {
		encoded, err = traffic.AppendBinary(nil)
		return encoded, "application/octet-stream", err
	}
	encoded, err = json.Marshal(body)
	return encoded, "application/json", err
}

type refused struct{ error }

func (s *Server) answerTraffic(request *http.Request) (any, error) {
	traffic, err := s.traffic.wait(request.Context(), request.FormValue(liveapi.ParameterSince))
	if err != nil {
		return nil, err
	}
	traffic.Node = s.source.Node()
	return traffic, nil
}

func (s *Server) answerState(request *http.Request) (any, error) {
	state, err := s.state.wait(request.Context(), request.FormValue(liveapi.ParameterSince))
	if err != nil {
		return nil, err
	}
	state.Node = s.source.Node()
	return state, nil
}

func (s *Server) answerFlows(request *http.Request) (any, error) {
	selected, err := parseSelection(request)
	if err != nil {
		return nil, err
	}
	// Walking all connections uses a CPU, so one request runs at a time.
	s.walking.Lock()
	defer s.walking.Unlock()
	if err := request.Context().Err(); err != nil {
		return nil, err
	}
	flows, more, err := s.source.Flows(selected.service, selected.clients, selected.limit)
	if err != nil {
		return nil, err
	}
	return &liveapi.Flows{Node: s.source.Node(), Items: flows, Truncated: more}, nil
}

func (s *Server) answerDrops(request *http.Request) (any, error) {
	selected, err := parseSelection(request)
	if err != nil {
		return nil, err
	}
	answer := &liveapi.Drops{Node: s.source.Node(), Items: []console.Drop{}}
	drops := s.source.Drops()
	slices.Reverse(drops)
	for _, drop := range drops {
		if drop.Service != selected.service || selected.clients.IsValid() && !selected.clients.Contains(drop.Source.Addr().Unmap()) {
			continue
		}
		if len(answer.Items) == selected.limit {
			answer.Truncated = true
			break
		}
		answer.Items = append(answer.Items, drop)
	}
	return answer, nil
}

type selection struct {
	service string
	clients netip.Prefix
	limit   int
}

func parseSelection(request *http.Request) (selection, error) {
	selected := selection{service: request.FormValue(liveapi.ParameterService), limit: liveapi.MaxLimit}
	if namespace, name, found := strings.Cut(selected.service, "/"); !found || namespace == "" || name == "" {
		return selection{}, refused{fmt.Errorf("%s is %q, must be namespace/name", liveapi.ParameterService, selected.service)}
	}
	if value := request.FormValue(liveapi.ParameterLimit); value != "" {
		limit, err := strconv.Atoi(value)
		if err != nil || limit < 1 || limit > liveapi.MaxLimit {
			return selection{}, refused{fmt.Errorf("%s is %q, must be 1 to %d", liveapi.ParameterLimit, value, liveapi.MaxLimit)}
		}
		selected.limit = limit
	}
	if value := request.FormValue(liveapi.ParameterClient); value != "" {
		clients, err := netip.ParsePrefix(value)
		if err != nil {
			address, failed := netip.ParseAddr(value)
			if failed != nil {
				return selection{}, refused{fmt.Errorf("%s is %q, must be an address or a CIDR", liveapi.ParameterClient, value)}
			}
			address = address.Unmap().WithZone("")
			clients = netip.PrefixFrom(address, address.BitLen())
		}
		selected.clients = clients.Masked()
	}
	return selected, nil
}
