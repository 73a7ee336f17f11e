// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"cmp"
	"sync/atomic"
)

// notice is what an observer has for the report; empty where there is nothing to tell.
type notice struct {
	told atomic.Pointer[string]
}

// tell reports whether text is another than before.
func (n *notice) tell(text string) (changed bool) {
	before := n.told.Swap(&text)
	return *cmp.Or(before, new(string)) != text
}

func (n *notice) text() string { return *cmp.Or(n.told.Load(), new(string)) }
