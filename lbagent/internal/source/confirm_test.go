// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/millrace-lb/millrace/test/blackhole"
)

// behind returns a synced Source whose HTTP/2 connections pass through a line.
func (s *apiServer) behind(t *testing.T) (*Source, *blackhole.Proxy) {
	t.Helper()
	server := httptest.NewUnstartedServer(s.Config.Handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	line := blackhole.New(t, server.Listener.Addr().String())
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

// confirm returns the duration and result of Confirm.
func confirm(t *testing.T, source *Source, limit time.Duration) (time.Duration, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	err := source.Confirm(ctx)
	return time.Since(began), err
}

// Confirm succeeds although the open connections are dead. client-go alone would detect that after 45
// seconds.
func TestConfirm(t *testing.T) {
	s := newAPIServer(t)
	s.send(t, "ADDED", "services", service("web"))
	source, line := s.behind(t)
	if took, err := confirm(t, source, 10*time.Second); err != nil || took > pingTimeout {
		t.Errorf("with a working connection: %v after %s", err, took)
	}
	if frozen := line.Drop(); frozen == 0 {
		t.Fatal("no connection to interrupt")
	}
	s.send(t, "DELETED", "services", service("web"))
	took, err := confirm(t, source, 20*time.Second)
	if err != nil || took > 4*time.Second || len(source.Snapshot().Services) != 0 {
		t.Errorf("after %s: %v, Services %v", took, err, source.Snapshot().Services)
	}
}

func TestConfirmWithoutKind(t *testing.T) {
	s := newAPIServer(t)
	source, line := s.behind(t)
	s.mu.Lock()
	s.forbidden = "vippools"
	s.mu.Unlock()
	line.Drop()
	if took, err := confirm(t, source, 20*time.Second); err != nil {
		t.Errorf("after %s: %v", took, err)
	}
}

// Confirm retries an unreachable API server, and watches resume immediately when it returns, regardless of
// their backoff.
func TestConfirmUnreachable(t *testing.T) {
	s := newAPIServer(t)
	source, line := s.behind(t)
	line.Reject(true)
	if took, err := confirm(t, source, time.Second); err == nil || took > 2*time.Second {
		t.Errorf("without an API server: %v after %s", err, took)
	}
	// Long enough for a backoff of several seconds.
	select {
	case <-source.Changed():
		t.Error("an object that is not visible was reported as a change")
	case <-time.After(4 * time.Second):
	}
	s.send(t, "ADDED", "services", service("web"))
	line.Reject(false)
	took, err := confirm(t, source, 10*time.Second)
	if err != nil || len(source.Snapshot().Services) != 1 || took > 2*pingTimeout {
		t.Errorf("after %s: %v, Services %v", took, err, source.Snapshot().Services)
	}
}

// An overloaded API server still sends events: existing watches must survive, because new ones would be
// rejected.
func TestConfirmWhileBusy(t *testing.T) {
	s := newAPIServer(t)
	source, _ := s.behind(t)
	busy := make(chan struct{})
	s.mu.Lock()
	s.busy = busy
	s.mu.Unlock()
	defer close(busy)
	s.send(t, "ADDED", "services", service("web"))
	took, err := confirm(t, source, 3*time.Second)
	if err != nil || took > pingTimeout || len(source.Snapshot().Services) != 1 {
		t.Errorf("after %s: %v, Services %v", took, err, source.Snapshot().Services)
	}
}

func TestOneConnection(t *testing.T) {
	s := newAPIServer(t)
	source, line := s.behind(t)
	line.Reject(true)
	line.Reject(false)
	if took, err := confirm(t, source, 10*time.Second); err != nil {
		t.Fatalf("after %s: %v", took, err)
	}
	if open := line.Drop(); open != 1 {
		t.Errorf("%d connections, want 1", open)
	}
}

// A request queued by the API server, even the first one, does not delay others.
func TestQueuedRequestDelaysNoOther(t *testing.T) {
	s := newAPIServer(t)
	source, line := s.behind(t)
	busy := make(chan struct{})
	s.mu.Lock()
	s.busy = busy
	s.mu.Unlock()
	defer close(busy)
	line.Reject(true)
	line.Reject(false)
	source.tracker.retry()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := source.clients.pinged.awaitResponse(ctx); err != nil {
		t.Error(err)
	}
	if open := line.Drop(); open != 1 {
		t.Errorf("%d connections, want 1", open)
	}
}
