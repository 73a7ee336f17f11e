// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"encoding/json"
	"sync"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
)

// backlog is how many events a page may lag behind before it is sent the whole state again.
const backlog = 8

// nothing is the event of an interval without changes; it keeps the connection alive.
var nothing = []byte("{}")

type hub struct {
	mu      sync.Mutex
	state   *view.State
	view    *view.View
	encoded *view.Encoded
	clients map[chan []byte]bool
	closed  bool
}

// join sends a page the whole state, if there is one.
func (h *hub) join(source Source) chan []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	client := make(chan []byte, backlog)
	if h.closed {
		close(client)
		return client
	}
	if len(h.clients) == 0 {
		// The cached state may be stale, because it is updated only while there are clients.
		h.refresh(source)
	}
	text := nothing
	if h.encoded != nil {
		if encoded, err := json.Marshal(view.Changes(nil, h.encoded)); err == nil {
			text = encoded
		}
	}
	client <- text
	h.clients[client] = true
	return client
}

func (h *hub) leave(client chan []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.clients, client)
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for client := range h.clients {
		h.drop(client)
	}
}

func (h *hub) drop(client chan []byte) {
	delete(h.clients, client)
	close(client)
}

func (h *hub) watched() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.clients) > 0
}

func (h *hub) latest(source Source) (*view.State, *view.View) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == nil || len(h.clients) == 0 {
		h.refresh(source)
	}
	return h.state, h.view
}

// refresh reports whether the state has changed.
func (h *hub) refresh(source Source) bool {
	state := source.State()
	if state == nil || state == h.state {
		return false
	}
	built := view.Build(state)
	encoded, err := view.Encode(built)
	if err != nil {
		return false
	}
	h.state, h.view, h.encoded = state, built, encoded
	return true
}

func (h *hub) update(source Source) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.encoded
	text := nothing
	if h.refresh(source) {
		if encoded, err := json.Marshal(view.Changes(before, h.encoded)); err == nil {
			text = encoded
		}
	}
	for client := range h.clients {
		select {
		case client <- text:
		default:
			h.drop(client)
		}
	}
}
