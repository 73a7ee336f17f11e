// SPDX-License-Identifier: Apache-2.0

package source

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// An API server without the kind VIPRoute holds nothing up. Its VIPRoutes are seen once it is
// installed.
func TestWithoutTheKindVIPRoute(t *testing.T) {
	s := newAPIServer(t)
	s.missing = "viproutes"
	s.send(t, "ADDED", "services", service("web"))
	source := s.start(t)
	awaitChange(t, source, "all kinds but VIPRoute")
	if snapshot := source.Snapshot(); len(snapshot.Services) != 1 || len(snapshot.Routes) != 0 {
		t.Errorf("%d Services and %d VIPRoutes, want 1 and 0", len(snapshot.Services), len(snapshot.Routes))
	}
	s.mu.Lock()
	s.missing = ""
	s.mu.Unlock()
	s.watched(t)
	s.send(t, "ADDED", "viproutes", &millracev1beta1.VIPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "edge"}})
	awaitChange(t, source, "the VIPRoute")
	await(t, "the VIPRoute", func() bool { return len(source.Snapshot().Routes) == 1 })
}

// VIPRoutes that cannot be listed may be there: without them Services would lose endpoints.
func TestGatedOnVIPRoutes(t *testing.T) {
	s := newAPIServer(t)
	s.forbidden = "viproutes"
	s.send(t, "ADDED", "services", service("web"))
	source := s.start(t)
	await(t, "the Service", func() bool { return len(source.Snapshot().Services) == 1 })
	select {
	case <-source.Synced():
		t.Fatal("synced without VIPRoutes")
	case <-source.Changed():
		t.Fatal("a change before all kinds were listed")
	case <-time.After(5 * settle):
	}
	s.mu.Lock()
	s.forbidden = ""
	s.mu.Unlock()
	awaitChange(t, source, "the VIPRoutes")
}
