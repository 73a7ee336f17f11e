// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/millrace-lb/millrace/test/frozen"
)

// behind has a Source read all objects of a server by HTTP/2, over a line.
func (s *apiServer) behind(t *testing.T) (*Source, *frozen.Line) {
	t.Helper()
	server := httptest.NewUnstartedServer(s.Config.Handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	line := frozen.NewLine(t, server.Listener.Addr().String())
	clients, err := NewClientsForConfig(&rest.Config{
		Host: "https://" + line.Address, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	source := run(t, clients)
	awaitChange(t, source, "the first lists")
	s.watched(t)
	return source, line
}

// confirm returns how long it took, and how it ended.
func confirm(t *testing.T, source *Source, limit time.Duration) (time.Duration, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	err := source.Confirm(ctx)
	return time.Since(began), err
}

// Connections may carry nothing though nobody has closed them: what the API server has is known all the
// same when it was asked for. client-go alone finds that out after 45 seconds.
func TestConfirm(t *testing.T) {
	s := newAPIServer(t)
	s.send(t, "ADDED", "services", service("web"))
	source, line := s.behind(t)
	if took, err := confirm(t, source, 10*time.Second); err != nil || took > askTimeout {
		t.Errorf("over a connection that works: %v after %s", err, took)
	}
	if frozen := line.Freeze(); frozen == 0 {
		t.Fatal("no connection to freeze")
	}
	s.send(t, "DELETED", "services", service("web"))
	took, err := confirm(t, source, 20*time.Second)
	if err != nil || took > 4*time.Second || len(source.Snapshot().Services) != 0 {
		t.Errorf("after %s: %v, and Services %v", took, err, source.Snapshot().Services)
	}
}

// A kind that the API server does not give out any more is waited for no longer.
func TestConfirmWithoutKind(t *testing.T) {
	s := newAPIServer(t)
	source, line := s.behind(t)
	s.mu.Lock()
	s.forbidden = "vippools"
	s.mu.Unlock()
	line.Freeze()
	if took, err := confirm(t, source, 20*time.Second); err != nil {
		t.Errorf("after %s: %v", took, err)
	}
}

// An API server that is out of reach is asked for as long as there is time, and the watches come back as
// soon as it answers, however long they would have waited by then.
func TestConfirmOutOfReach(t *testing.T) {
	s := newAPIServer(t)
	source, line := s.behind(t)
	line.Cut(true)
	if took, err := confirm(t, source, time.Second); err == nil || took > 2*time.Second {
		t.Errorf("without an API server: %v after %s", err, took)
	}
	// Long enough for pauses of several seconds.
	select {
	case <-source.Changed():
		t.Error("a change of what nobody can see")
	case <-time.After(4 * time.Second):
	}
	s.send(t, "ADDED", "services", service("web"))
	line.Cut(false)
	took, err := confirm(t, source, 10*time.Second)
	if err != nil || len(source.Snapshot().Services) != 1 || took > 2*askTimeout {
		t.Errorf("after %s: %v, and Services %v", took, err, source.Snapshot().Services)
	}
}

// An API server that has no time for new requests, or no seat for agents, still sends what changes. Its
// watches are kept: nobody could begin others.
func TestConfirmBusy(t *testing.T) {
	s := newAPIServer(t)
	source, _ := s.behind(t)
	busy := make(chan struct{})
	s.mu.Lock()
	s.busy = busy
	s.mu.Unlock()
	defer close(busy)
	s.send(t, "ADDED", "services", service("web"))
	took, err := confirm(t, source, 3*time.Second)
	if err != nil || took > askTimeout || len(source.Snapshot().Services) != 1 {
		t.Errorf("after %s: %v, and Services %v", took, err, source.Snapshot().Services)
	}
}

// A dozen watches that come back make one connection.
func TestOneConnection(t *testing.T) {
	s := newAPIServer(t)
	source, line := s.behind(t)
	line.Cut(true)
	line.Cut(false)
	if took, err := confirm(t, source, 10*time.Second); err != nil {
		t.Fatalf("after %s: %v", took, err)
	}
	if open := line.Freeze(); open != 1 {
		t.Errorf("%d connections", open)
	}
}

// A request that the API server has wait holds up no other, also not when it is the first one.
func TestBusyFromTheStart(t *testing.T) {
	s := newAPIServer(t)
	source, line := s.behind(t)
	busy := make(chan struct{})
	s.mu.Lock()
	s.busy = busy
	s.mu.Unlock()
	defer close(busy)
	line.Cut(true)
	line.Cut(false)
	source.contact.retry()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := source.clients.pinged.until(ctx); err != nil {
		t.Error(err)
	}
	if open := line.Freeze(); open != 1 {
		t.Errorf("%d connections", open)
	}
}
