// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// ErrFull is returned if a map is full, or an id or slot exceeds its limit.
var ErrFull = errors.New("map is full")

// UplinkError is the reason why programs are not attached to an uplink.
type UplinkError struct {
	Index     int
	Interface string
	Err       error
}

func (e *UplinkError) Error() string {
	return fmt.Sprintf("attach to interface %s: %v", e.Interface, e.Err)
}

func (e *UplinkError) Unwrap() error { return e.Err }

// FullError is ErrFull with the exhausted capacity.
type FullError struct {
	Capacity forwarding.Capacity
	Err      error
}

func (e *FullError) Error() string {
	return fmt.Sprintf("%v: no room for more %s", e.Err, e.Capacity)
}

func (e *FullError) Unwrap() error { return e.Err }

// ApplyError is returned by Apply for a failed operation.
type ApplyError struct {
	Op forwarding.Op
	// Map and Key identify the entry that could not be written.
	Map, Key string
	Err      error
}

func (e *ApplyError) Error() string {
	return fmt.Sprintf("%T: write %s of map %s: %v", e.Op, e.Key, e.Map, e.Err)
}

func (e *ApplyError) Unwrap() error { return e.Err }
