// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"testing"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
)

// unread is a cluster that was not read yet.
type unread struct{}

func (unread) State() *view.State                               { return nil }
func (unread) Query(context.Context, string) (*Response, error) { return nil, nil }
func (unread) Why(context.Context, WhyQuery) (*Timeline, error) { return nil, nil }
func (unread) Trace(context.Context, Packet) (any, error)       { return nil, nil }
func (unread) Routes(context.Context) (*routing.View, error)    { return nil, nil }

// A page that does not read is dropped, and the others get all of their events.
func TestSlowPage(t *testing.T) {
	h := hub{clients: map[chan []byte]bool{}}
	slow, fast := h.join(unread{}), h.join(unread{})
	got := 0
	for range backlog + 1 {
		<-fast
		got++
		h.update(unread{})
	}
	if len(h.clients) != 1 || !h.clients[fast] {
		t.Errorf("%d pages are left, want the one that reads", len(h.clients))
	}
	left := 0
	for range slow {
		left++
	}
	if left != backlog || got != backlog+1 {
		t.Errorf("the slow page got %d events, the other one %d", left, got)
	}
	h.close()
	if _, more := <-fast; !more {
		t.Error("the last event is lost")
	}
	if _, more := <-fast; more {
		t.Error("the page is not notified of the end")
	}
	if _, more := <-h.join(unread{}); more {
		t.Error("a page joined after the end")
	}
}
