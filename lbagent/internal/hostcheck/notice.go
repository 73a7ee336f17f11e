// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"cmp"
	"sync/atomic"
)

type notice struct {
	told atomic.Pointer[string]
}

func (n *notice) tell(text string) (changed bool) {
	before := n.told.Swap(&text)
	return *cmp.Or(before, new(string)) != text
}

func (n *notice) text() string { return *cmp.Or(n.told.Load(), new(string)) }
