// SPDX-License-Identifier: Apache-2.0

package write

import (
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"
)

// together does things at the same time, a few at once. The zero value is ready.
type together struct {
	group    errgroup.Group
	limited  bool
	mu       sync.Mutex
	problems []error
}

// do does something, and then calls done with its error, one at a time.
func (t *together) do(work func() error, done func(error)) {
	if !t.limited {
		t.group.SetLimit(parallel)
		t.limited = true
	}
	t.group.Go(func() error {
		err := work()
		t.mu.Lock()
		defer t.mu.Unlock()
		done(err)
		t.problems = append(t.problems, err)
		return nil
	})
}

// wait waits for all, and returns all errors.
func (t *together) wait() error {
	// No function returns one: one that fails holds up no other.
	_ = t.group.Wait()
	return errors.Join(t.problems...)
}
