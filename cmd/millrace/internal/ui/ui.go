// SPDX-License-Identifier: Apache-2.0

// Package ui serves the page of `millrace ui`. Static files are embedded and need no token. All data of the
// cluster requires one: the state is sent as server-sent events, answers of agents on request.
package ui

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
)

//go:embed static
var embedded embed.FS

// Source reads a cluster. Its methods may be called concurrently.
type Source interface {
	// State returns the same pointer until the state changes, and nil before the first complete read. A
	// source may pause its requests to the cluster when State is not called for a while.
	State() *view.State
	// Query queries agents, or the aggregated API in their place, about the row with an ID.
	Query(ctx context.Context, id string) (*Response, error)
	// Why returns the history of a Service, as `millrace why` does.
	Why(ctx context.Context, query WhyQuery) (*Timeline, error)
	// Trace returns the path of a packet, as `millrace trace` does.
	Trace(ctx context.Context, packet Packet) (any, error)
	// Routes returns the routes of Ingresses and Gateways, as `millrace routes` does.
	Routes(ctx context.Context) (*routing.View, error)
}

// Options configure a Handler.
type Options struct {
	Token    string
	Hosts    []string
	Interval time.Duration
}

// DefaultInterval is the default of Options.Interval.
const DefaultInterval = 2 * time.Second

// maxQueries limits concurrent requests to the source, because each queries many agents.
const maxQueries = 4

// Handler serves the page.
type Handler struct {
	source  Source
	options Options
	mux     *http.ServeMux
	hub     hub
	slots   chan struct{}
}

// NewToken returns 32 random bytes in hexadecimal.
func NewToken() string {
	token := make([]byte, 32)
	// Read never returns an error (crypto/rand).
	_, _ = rand.Read(token)
	return hex.EncodeToString(token)
}

// New returns a handler, which sends changes while Run runs.
func New(source Source, options Options) (*Handler, error) {
	if options.Token == "" {
		return nil, errors.New("serve the page: there is no token")
	}
	if options.Interval == 0 {
		options.Interval = DefaultInterval
	}
	files, err := fs.Sub(embedded, "static")
	if err != nil {
		return nil, fmt.Errorf("serve the page: %w", err)
	}
	h := &Handler{source: source, options: options, mux: http.NewServeMux(), slots: make(chan struct{}, maxQueries)}
	h.hub.clients = map[chan []byte]bool{}
	h.mux.Handle("GET /", serveFiles(files))
	h.mux.Handle("GET /api/events", h.authorized(h.events))
	h.mux.Handle("GET /api/details", h.authorized(h.details))
	h.mux.Handle("GET /api/ask", h.authorized(h.query))
	h.mux.Handle("GET /api/why", h.authorized(h.why))
	h.mux.Handle("GET /api/trace", h.authorized(h.trace))
	h.mux.Handle("GET /api/routes", h.authorized(h.routes))
	return h, nil
}

// serveFiles handles missing files itself, because http.Error of http.FileServerFS removes Cache-Control.
func serveFiles(files fs.FS) http.Handler {
	serve := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := strings.TrimPrefix(r.URL.Path, "/"); name != "" {
			if _, err := fs.Stat(files, name); err != nil {
				fail(w, http.StatusNotFound, fmt.Errorf("there is no %s", r.URL.Path))
				return
			}
		}
		serve.ServeHTTP(w, r)
	})
}

// Run sends changes until ctx is done.
func (h *Handler) Run(ctx context.Context) {
	ticker := time.NewTicker(h.options.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			h.hub.close()
			return
		case <-ticker.C:
			if h.hub.watched() {
				h.hub.update(h.source)
			}
		}
	}
}

// policy allows the page to load only its own files, and forbids frames and forms.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	// Other host names that resolve to this address would make pages of the same origin (DNS rebinding).
	if !slices.Contains(h.options.Hosts, strings.ToLower(r.Host)) {
		fail(w, http.StatusMisdirectedRequest, fmt.Errorf("host %q is not served; open the address that was printed", r.Host))
		return
	}
	h.mux.ServeHTTP(w, r)
}

// authorized requires the token in a header, because browsers send cookies to all ports of a host (RFC
// 6265, section 8.5) and with requests of other pages.
func (h *Handler) authorized(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, is := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !is || subtle.ConstantTimeCompare([]byte(token), []byte(h.options.Token)) != 1 {
			fail(w, http.StatusUnauthorized, errors.New("the token is missing or wrong; open the address that millrace ui printed"))
			return
		}
		next(w, r)
	})
}

func (h *Handler) events(w http.ResponseWriter, r *http.Request) {
	client := h.hub.join(h.source)
	defer h.hub.leave(client)
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	for {
		select {
		case <-r.Context().Done():
			return
		case text, more := <-client:
			if !more {
				return
			}
			// A client that does not read must not keep its connection.
			_ = out.SetWriteDeadline(time.Now().Add(writeTime))
			if _, err := fmt.Fprintf(w, "event: change\ndata: %s\n\n", text); err != nil {
				return
			}
			if err := out.Flush(); err != nil {
				return
			}
		}
	}
}

// writeTime is the time limit of writing one event.
const writeTime = 20 * time.Second

func (h *Handler) details(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	state, built := h.hub.latest(h.source)
	if state == nil {
		fail(w, http.StatusServiceUnavailable, errors.New("the cluster has not been read yet"))
		return
	}
	details, found := view.DetailsOf(state, built, id)
	if !found {
		fail(w, http.StatusNotFound, fmt.Errorf("there is no %s", id))
		return
	}
	reply(w, details)
}

func (h *Handler) query(w http.ResponseWriter, r *http.Request) {
	h.serve(w, r, func(ctx context.Context) (any, error) { return h.source.Query(ctx, r.URL.Query().Get("id")) })
}

func (h *Handler) why(w http.ResponseWriter, r *http.Request) {
	query, err := whyQuery(r.URL.Query())
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	h.serve(w, r, func(ctx context.Context) (any, error) { return h.source.Why(ctx, query) })
}

func (h *Handler) trace(w http.ResponseWriter, r *http.Request) {
	packet, err := packetOf(r.URL.Query())
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	h.serve(w, r, func(ctx context.Context) (any, error) { return h.source.Trace(ctx, packet) })
}

func (h *Handler) routes(w http.ResponseWriter, r *http.Request) {
	h.serve(w, r, func(ctx context.Context) (any, error) { return h.source.Routes(ctx) })
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, query func(context.Context) (any, error)) {
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-r.Context().Done():
		return
	}
	response, err := query(r.Context())
	if err != nil {
		fail(w, http.StatusBadGateway, err)
		return
	}
	reply(w, response)
}

func reply(w http.ResponseWriter, response any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(response)
}

func fail(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}
