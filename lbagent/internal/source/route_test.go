// SPDX-License-Identifier: Apache-2.0

package source

import (
	"testing"
	"time"
)

// Without VIPRoutes, Services would lose endpoints, so that nothing happens before they are listed.
func TestGatedOnVIPRoutes(t *testing.T) {
	s := newAPIServer(t)
	s.forbidden = "viproutes"
	s.send(t, "ADDED", "services", service("web"))
	source := s.start(t)
	await(t, "the Service", func() bool { return len(source.Snapshot().Services) == 1 })
	select {
	case <-source.Synced():
		t.Fatal("Synced is closed without VIPRoutes")
	case <-source.Changed():
		t.Fatal("change reported before all kinds were listed")
	case <-time.After(5 * coalesceDelay):
	}
	s.mu.Lock()
	s.forbidden = ""
	s.mu.Unlock()
	awaitChange(t, source, "the VIPRoutes")
}
