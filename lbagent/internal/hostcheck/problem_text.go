// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"cmp"
	"sync/atomic"
)

type problemText struct {
	current atomic.Pointer[string]
}

func (n *problemText) set(text string) (changed bool) {
	before := n.current.Swap(&text)
	return *cmp.Or(before, new(string)) != text
}

func (n *problemText) text() string { return *cmp.Or(n.current.Load(), new(string)) }
