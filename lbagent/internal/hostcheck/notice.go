// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"cmp"
	"sync/atomic"
)

// notice is the text of an observer for the report; empty without a problem.
type notice struct {
	told atomic.Pointer[string]
}

// tell stores the text and reports whether it has changed.
func (n *notice) tell(text string) (changed bool) {
	before := n.told.Swap(&text)
	return *cmp.Or(before, new(string)) != text
}

func (n *notice) text() string { return *cmp.Or(n.told.Load(), new(string)) }
