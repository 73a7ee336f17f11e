// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"testing"

	"github.com/millrace-lb/millrace/bpf"
)

// A beat after a silence records the return, and later beats retain it.
func TestBeat(t *testing.T) {
	d := openDataplane(t, smallConfig(mountBPF(t)))
	read := func() (beats bpf.DatapathAgentHeartbeats) {
		t.Helper()
		if err := d.maps.AgentHeartbeat.Lookup(uint32(0), &beats); err != nil {
			t.Fatal(err)
		}
		return beats
	}
	beat := func() bpf.DatapathAgentHeartbeats {
		t.Helper()
		if err := d.Beat(); err != nil {
			t.Fatal(err)
		}
		return read()
	}
	first := beat()
	if first.Beat == 0 || first.Returned != 0 {
		t.Errorf("after the first beat: %+v, want no return", first)
	}
	silent := bpf.DatapathAgentHeartbeats{Beat: first.Beat - uint64(silence)}
	if err := d.maps.AgentHeartbeat.Put(uint32(0), silent); err != nil {
		t.Fatal(err)
	}
	returned := beat()
	if returned.Beat < first.Beat || returned.Returned != returned.Beat {
		t.Errorf("after a pause: %+v, want a return at this beat", returned)
	}
	if next := beat(); next.Returned != returned.Returned {
		t.Errorf("after the next beat: %+v, want the return at %d", next, returned.Returned)
	}
}
