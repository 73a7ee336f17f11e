// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"

	"github.com/millrace-lb/millrace/lbagent/internal/program"
)

var (
	// ErrFull means that a map holds no more entries, or an id or slot is beyond
	// its limit.
	ErrFull = errors.New("map is full")
	// ErrForeignProgram means that an interface carries an XDP program that is
	// not ours. It is left alone.
	ErrForeignProgram = errors.New("another XDP program is attached")
)

// ApplyError is the operation at which Apply stopped. Those before it are done,
// those after it are not.
type ApplyError struct {
	// Index is the operation's place in the argument of Apply.
	Index int
	Op    program.Op
	// Map and Key name what could not be written.
	Map, Key string
	Err      error
}

func (e *ApplyError) Error() string {
	return fmt.Sprintf("operation %d (%T): write %s of map %s: %v", e.Index, e.Op, e.Key, e.Map, e.Err)
}

func (e *ApplyError) Unwrap() error { return e.Err }
