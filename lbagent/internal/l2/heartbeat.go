// SPDX-License-Identifier: Apache-2.0

package l2

import "sync/atomic"

// A Heartbeat shows programs and other nodes that the agent of this node works.
type Heartbeat struct {
	send, alive func() error
	// others is true while other nodes could answer.
	others atomic.Bool
}

// NewHeartbeat returns a heartbeat that is sent by a function while alive returns no error.
func NewHeartbeat(send, alive func() error) *Heartbeat { return &Heartbeat{send: send, alive: alive} }

// Send sends a heartbeat if the agent is alive. If it is not, Send returns the reason while other nodes
// could answer, and nil otherwise: then this node goes on answering on its links.
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

// SetOthers records whether other nodes could answer.
func (h *Heartbeat) SetOthers(could bool) { h.others.Store(could) }
