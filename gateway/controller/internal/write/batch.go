// SPDX-License-Identifier: Apache-2.0

package write

import (
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"
)

// batch runs up to parallel functions at once. The zero value is ready to use.
type batch struct {
	group    errgroup.Group
	limited  bool
	mu       sync.Mutex
	problems []error
}

// do passes the error of work to done, whose calls are serialized.
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

func (b *batch) wait() error {
	// Errors are collected in problems, so that a failure cancels no other function.
	_ = b.group.Wait()
	return errors.Join(b.problems...)
}
