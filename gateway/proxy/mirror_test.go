// SPDX-License-Identifier: Apache-2.0

package proxy

import "testing"

// TestMirrorsOfTenants checks that unresponsive backends of one namespace leave room for others.
func TestMirrorsOfTenants(t *testing.T) {
	m := newMirrors(1000)
	var taken []string
	for range 250 {
		for _, backend := range []string{
			"backend/hostile/a/80", "backend/hostile/b/80", "backend/hostile/b/80/h2c", "backend/hostile/c/80", "backend/hostile/d/80",
		} {
			if m.acquire(backend) {
				taken = append(taken, backend)
			}
		}
	}
	if len(taken) != 250 {
		t.Errorf("backends of one namespace have %d slots; want a quarter of 1,000", len(taken))
	}
	if !m.acquire("backend/other/a/80") {
		t.Error("no slot for another namespace")
	}
	m.release("backend/other/a/80")
	for _, backend := range taken {
		m.release(backend)
	}
	if m.all != 0 || len(m.of) != 0 {
		t.Errorf("%d slots in use by %v after all were released", m.all, m.of)
	}
}
