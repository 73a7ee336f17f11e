// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// ErrFull means that a map holds no more entries, or an id or slot is beyond its limit.
var ErrFull = errors.New("map is full")

// UplinkError is why the programs are not on an uplink.
type UplinkError struct {
	// Index is the uplink's.
	Index     int
	Interface string
	Err       error
}

func (e *UplinkError) Error() string {
	return fmt.Sprintf("attach to interface %s: %v", e.Interface, e.Err)
}

func (e *UplinkError) Unwrap() error { return e.Err }

// FullError is ErrFull with the capacity that is used up.
type FullError struct {
	Capacity forwarding.Capacity
	Err      error
}

func (e *FullError) Error() string {
	return fmt.Sprintf("%v: no room for more %s", e.Err, e.Capacity)
}

func (e *FullError) Unwrap() error { return e.Err }

// ApplyError is an operation that failed.
type ApplyError struct {
	Op forwarding.Op
	// Map and Key name what could not be written.
	Map, Key string
	Err      error
}

func (e *ApplyError) Error() string {
	return fmt.Sprintf("%T: write %s of map %s: %v", e.Op, e.Key, e.Map, e.Err)
}

func (e *ApplyError) Unwrap() error { return e.Err }
