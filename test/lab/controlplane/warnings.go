// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"strings"
	"sync"
)

// Warnings gathers the Warning headers of the API server. The zero value has none.
type Warnings struct {
	lock  sync.Mutex
	texts []string
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w *Warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.texts = append(w.texts, text)
}

// Take returns what was gathered, a line each, and begins anew.
func (w *Warnings) Take() string {
	w.lock.Lock()
	defer w.lock.Unlock()
	text := strings.Join(w.texts, "\n")
	w.texts = nil
	return text
}
