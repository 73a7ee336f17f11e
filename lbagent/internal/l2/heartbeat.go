// SPDX-License-Identifier: Apache-2.0

package l2

import "sync/atomic"

// A Heartbeat signals BPF programs and other nodes that this node's agent works.
type Heartbeat struct {
	send, alive func() error
	others      atomic.Bool
}

// NewHeartbeat returns a Heartbeat that calls send while alive returns no error.
func NewHeartbeat(send, alive func() error) *Heartbeat { return &Heartbeat{send: send, alive: alive} }

// Send sends a heartbeat if the agent is alive. Otherwise it returns the error of alive if other nodes
// could answer, and nil if not, so that this node continues to answer.
func (h *Heartbeat) Send() error {
	err := h.alive()
	switch {
	case err == nil:
		return h.send()
	case h.others.Load():
		return err
	default:
		return nil
	}
}

// SetOthers sets whether other nodes could answer.
func (h *Heartbeat) SetOthers(could bool) { h.others.Store(could) }
