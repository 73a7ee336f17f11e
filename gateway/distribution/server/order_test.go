// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace-lb/millrace/gateway/distribution"
)

func having(t *testing.T, version string) func(context.Context) context.Context {
	t.Helper()
	return func(ctx context.Context) context.Context {
		return metadata.AppendToOutgoingContext(ctx, distribution.VersionKey, version)
	}
}

// TestOlderVersionIsNotSent checks that a replica with an older version than the proxy's sends nothing until
// it has caught up.
func TestOlderVersionIsNotSent(t *testing.T) {
	c := startController(t)
	c.Advance(900)
	c.set(t, "blue", map[string]string{"a": "old"})
	stream := raw(t, c, "of blue", request(map[string]string{"a": "of the other"}), having(t, "1000-0123456789abcdef"))
	c.awaitProxy(t, "is connected", func(Proxy) bool { return true })
	c.Advance(950)
	c.set(t, "blue", map[string]string{"a": "older"})
	c.Advance(1001)
	c.set(t, "blue", map[string]string{"a": "new"})
	response, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if got := response.GetSystemVersionInfo(); distribution.Order(got) != 1001 {
		t.Errorf("first version = %s; want order 1001", got)
	}
}

// TestSameKeepsItsName checks that a proxy with an equal configuration keeps the name of its newer version.
func TestSameKeepsItsName(t *testing.T) {
	c := startController(t)
	c.Advance(900)
	c.set(t, "blue", map[string]string{"a": "1"})
	first, err := raw(t, c, "of blue", request(nil)).Recv()
	if err != nil {
		t.Fatal(err)
	}
	_, digest, _ := strings.Cut(first.GetSystemVersionInfo(), "-")
	known := map[string]string{"a": first.GetResources()[0].GetVersion()}
	response, err := raw(t, c, "of blue", request(known), having(t, "1000-"+digest)).Recv()
	if err != nil || response.GetSystemVersionInfo() != "1000-"+digest || len(response.GetResources()) > 0 {
		t.Errorf("sent %v: %v; want only the version", response, err)
	}
}

func TestVersionsDependOnContent(t *testing.T) {
	one, two := NewServer(nil), NewServer(nil)
	one.Advance(5)
	one.Set("blue", certificates(map[string]string{"a": "1", "b": "2"}))
	two.Advance(7)
	two.Set("blue", certificates(map[string]string{"a": "1", "b": "1", "c": "3"}))
	name := func(s *Server) (string, string) {
		current, _ := s.current("blue")
		order, digest, _ := strings.Cut(current.version(), "-")
		return order, digest
	}
	_, first := name(one)
	if _, other := name(two); first == other {
		t.Errorf("different contents have the same digest %s", first)
	}
	two.Advance(9)
	two.Set("blue", certificates(map[string]string{"a": "1", "b": "1"}))
	two.Update("blue", certificates(map[string]string{"b": "2"}))
	if order, digest := name(two); digest != first || order != "9" {
		t.Errorf("version = %s-%s; want 9-%s", order, digest, first)
	}
}

// TestSuspended checks that proxies of a suspended replica reconnect to another replica, and may return
// later.
func TestSuspended(t *testing.T) {
	one, two := startController(t), startController(t)
	for _, c := range []*controller{one, two} {
		c.set(t, "blue", map[string]string{"a": "1"})
	}
	service := relay(t, one.address, two.address)
	p := startProxy(t, &controller{address: service, trusting: one.trusting}, "of blue", nil, nil)
	p.next(t)
	one.Suspend(true)
	if _, err := raw(t, one, "of blue", request(nil)).Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("suspended controller: error %v, want Unavailable", err)
	}
	one.Advance(1)
	one.Set("blue", certificates(map[string]string{"a": "stale"}))
	two.Advance(2)
	two.Set("blue", certificates(map[string]string{"a": "2"}))
	for p.has["a"] != "2" {
		if p.next(t); p.has["a"] == "stale" {
			t.Fatal("a suspended controller serves configurations")
		}
	}
	two.Suspend(true)
	one.Suspend(false)
	one.Advance(3)
	one.Set("blue", certificates(map[string]string{"a": "3"}))
	for p.has["a"] != "3" {
		p.next(t)
	}
}

// relay forwards connections to the endpoints in turn, like a Service.
func relay(t *testing.T, endpoints ...string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wait sync.WaitGroup
	t.Cleanup(func() { listener.Close(); wait.Wait() })
	var count atomic.Int64
	wait.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", endpoints[int(count.Add(1)-1)%len(endpoints)])
			if err != nil {
				client.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
				wait.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					pair[0].Close()
					pair[1].Close()
				})
			}
		}
	})
	return listener.Addr().String()
}
