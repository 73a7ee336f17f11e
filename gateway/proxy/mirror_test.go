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
		t.Errorf("the backends of a namespace have %d slots; want a quarter of 1,000", len(taken))
	}
	if !m.acquire("backend/other/a/80") {
		t.Error("there is no place for another namespace")
	}
	m.release("backend/other/a/80")
	for _, backend := range taken {
		m.release(backend)
	}
	if m.all != 0 || len(m.of) != 0 {
		t.Errorf("all slots were released, but %d are used, by %v", m.all, m.of)
	}
}
