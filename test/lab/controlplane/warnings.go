// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"strings"
	"sync"
)

// Warnings collects Warning headers of the API server. The zero value is empty.
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

// Take returns the collected warnings, one per line, and removes them.
func (w *Warnings) Take() string {
	w.lock.Lock()
	defer w.lock.Unlock()
	text := strings.Join(w.texts, "\n")
	w.texts = nil
	return text
}
