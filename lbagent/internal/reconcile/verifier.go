// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

const (
	// VerifyEvery is the interval for reading back one part of the maps. All parts take VerifyParts
	// intervals.
	VerifyEvery = time.Minute
	// VerifyParts is the number of parts.
	VerifyParts = 100
)

type verifier struct {
	due  time.Time
	part uint32
}

// VerifyFrom enables the verification of the maps from a time on.
func (m *Maps) VerifyFrom(first time.Time) { m.verifier = &verifier{due: first} }

// Verify reads back the part of the maps that is due and schedules the repair of entries that another
// program has modified. It returns the delay until the next part, or 0. It does nothing while changes are
// pending.
func (m *Maps) Verify(now time.Time) (time.Duration, error) {
	v := m.verifier
	if v == nil {
		return 0, nil
	}
	if left := v.due.Sub(now); left > 0 {
		return left, nil
	}
	v.due = now.Add(VerifyEvery)
	if m.have == nil || m.pending == nil || !m.pending.Entries.IsEmpty() {
		return VerifyEvery, nil
	}
	part := m.have.Part(v.part, VerifyParts)
	v.part = (v.part + 1) % VerifyParts
	read := m.have.Clone()
	if err := m.Plane.ReadBack(read, part.Writes()); err != nil {
		// The next pass continues from the written content.
		return VerifyEvery, fmt.Errorf("verify the maps: %w", err)
	}
	wrong := forwarding.DiffOf(read, m.have, part)
	if len(wrong) == 0 {
		return VerifyEvery, nil
	}
	m.Repaired(len(wrong))
	m.Logger.Error(nil, "The maps differ from what this agent wrote: another program writes to them. They are repaired",
		"entries", len(wrong), "first", fmt.Sprintf("%T of %v", wrong[0], forwarding.Written(wrong[0])))
	m.have, m.copied, m.usage, m.pending = read, false, nil, nil
	return time.Millisecond, nil
}
