// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"testing"
	"time"
)

// sharedStatus simulates a status that another program also writes, with a simulated clock.
type sharedStatus struct {
	Detector[string]
	now    time.Time
	status string
	writes int
}

func newSharedStatus() *sharedStatus { return &sharedStatus{now: time.Unix(1e9, 0)} }

func isOurs(status string) bool { return status == "ours" }

func (r *sharedStatus) look(later time.Duration) {
	r.now = r.now.Add(later)
	pause := r.Observe(r.status, r.now)
	switch {
	case isOurs(r.status):
		r.Found(isOurs)
	case pause == 0:
		r.writes++
		r.status = "ours"
		r.RecordWrite(isOurs, r.now)
	}
}

func (r *sharedStatus) overwrite() { r.status = "theirs" }

func TestContested(t *testing.T) {
	r := newSharedStatus()
	r.look(0)
	for range 600 {
		r.overwrite()
		r.look(100 * time.Millisecond)
	}
	// The first write, the writes after each counted overwrite, and two after pauses.
	if want := 1 + Overwrites + 1; !r.Contested() || r.writes < want || r.writes > want+1 {
		t.Errorf("%d writes in a minute, contested: %t", r.writes, r.Contested())
	}
	r.look(Pause)
	if r.status != "ours" || !r.Contested() {
		t.Errorf("after a pause the status is %s, contested: %t", r.status, r.Contested())
	}
	r.look(Pause - time.Second)
	if left := r.Left(r.now); !r.Contested() || left != time.Second {
		t.Errorf("a second before its end the pause has %s left, contested: %t", left, r.Contested())
	}
	if r.look(time.Second); r.Contested() {
		t.Error("the conflict does not end")
	}
	before := r.writes
	r.overwrite()
	if r.look(0); r.writes != before+1 {
		t.Error("after the conflict the status is not corrected at once")
	}
}

func TestRareOverwrites(t *testing.T) {
	r := newSharedStatus()
	r.look(0)
	for range 20 {
		r.overwrite()
		before := r.writes
		if r.look(Window/2 + time.Second); r.writes != before+1 || r.Contested() {
			t.Fatalf("%d writes, contested: %t", r.writes-before, r.Contested())
		}
	}
}

func TestClockSetBack(t *testing.T) {
	r := newSharedStatus()
	for range Overwrites + 1 {
		r.overwrite()
		r.look(time.Second)
	}
	r.now = r.now.Add(-time.Hour)
	if left := r.Left(r.now); !r.Contested() || left != Pause {
		t.Errorf("the pause has %s left, contested: %t", left, r.Contested())
	}
}
