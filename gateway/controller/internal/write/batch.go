// SPDX-License-Identifier: Apache-2.0

package write

import (
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"
)

// batch does things at the same time, a few at once. The zero value is ready.
type batch struct {
	group    errgroup.Group
	limited  bool
	mu       sync.Mutex
	problems []error
}

// do does something, and then calls done with its error, one at a time.
func (b *batch) do(work func() error, done func(error)) {
	if !b.limited {
		b.group.SetLimit(parallel)
		b.limited = true
	}
	b.group.Go(func() error {
		err := work()
		b.mu.Lock()
		defer b.mu.Unlock()
		done(err)
		b.problems = append(b.problems, err)
		return nil
	})
}

// wait waits for all, and returns all errors.
func (b *batch) wait() error {
	// No function returns one: one that fails holds up no other.
	_ = b.group.Wait()
	return errors.Join(b.problems...)
}
