// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"fmt"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

const (
	// VerifyEvery is how often a part of the maps is read back. Once in VerifyParts of that, all is.
	VerifyEvery = time.Minute
	// VerifyParts is how many parts there are.
	VerifyParts = 100
)

// verifier says when which part of the maps is to be read back.
type verifier struct {
	due  time.Time
	part uint32
}

// VerifyFrom has parts of the maps read back from a time on. Without it none is.
func (m *Maps) VerifyFrom(first time.Time) { m.verifier = &verifier{due: first} }

// Verify reads a part of the maps back when that is due, and has the next pass write all that is
// not as the agent has written it: another program may write to the maps. It returns after how
// long it is due again; 0 means it is not. While anything waits to be removed or is not written,
// nothing is read.
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
		// The maps are as they were: the next pass goes on from what was written.
		return VerifyEvery, fmt.Errorf("verify the maps: %w", err)
	}
	wrong := forwarding.DiffOf(read, m.have, part)
	if len(wrong) == 0 {
		return VerifyEvery, nil
	}
	m.Repaired(len(wrong))
	m.Logger.Error(nil, "The maps do not hold what this agent wrote: another program writes to them. They are repaired",
		"entries", len(wrong), "first", fmt.Sprintf("%T of %v", wrong[0], forwarding.Written(wrong[0])))
	m.have, m.copied, m.fill, m.pending = read, false, nil, nil
	return time.Millisecond, nil
}
