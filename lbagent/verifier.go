// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"fmt"
	"time"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

const (
	// verifyEvery is how often a part of the maps is read back. Once in verifyParts of that, all is.
	verifyEvery = time.Minute
	verifyParts = 100
)

// verifier says when which part of the maps is to be read back.
type verifier struct {
	due  time.Time
	part uint32
}

// verify reads a part of the maps back when that is due, and has the next pass write all that is
// not as the agent has written it: another program may write to the maps. It returns after how
// long it is due again; 0 means it is not. While anything waits to be removed or is not written,
// nothing is read.
func (l *loop) verify(now time.Time) (time.Duration, error) {
	v := l.verifier
	if v == nil {
		return 0, nil
	}
	if left := v.due.Sub(now); left > 0 {
		return left, nil
	}
	v.due = now.Add(verifyEvery)
	if l.have == nil || l.pending == nil || !l.pending.Entries.IsEmpty() {
		return verifyEvery, nil
	}
	part := l.have.Part(v.part, verifyParts)
	v.part = (v.part + 1) % verifyParts
	read := l.have.Clone()
	if err := l.dataplane.ReadBack(read, part.Writes()); err != nil {
		// The maps are as they were: the next pass goes on from what was written.
		return verifyEvery, fmt.Errorf("verify the maps: %w", err)
	}
	wrong := forwarding.DiffOf(read, l.have, part)
	if len(wrong) == 0 {
		return verifyEvery, nil
	}
	l.passes.Repaired(len(wrong))
	l.logger.Error(nil, "The maps do not hold what this agent wrote: another program writes to them. They are repaired",
		"entries", len(wrong), "first", fmt.Sprintf("%T of %v", wrong[0], forwarding.Written(wrong[0])))
	l.have, l.copied, l.pending = read, false, nil
	return time.Millisecond, nil
}
