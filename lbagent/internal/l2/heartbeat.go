// SPDX-License-Identifier: Apache-2.0

package l2

import "sync/atomic"

// Heartbeat says to other nodes that this one answers for its VIPs.
type Heartbeat struct {
	send, alive func() error
	// others is true while other nodes could answer.
	others atomic.Bool
}

// NewHeartbeat returns a heartbeat that is sent by a function while alive returns no error.
func NewHeartbeat(send, alive func() error) *Heartbeat { return &Heartbeat{send: send, alive: alive} }

// Send sends nothing where the agent is not alive, so that others answer. Where nobody else could, the
// node answers however it is.
func (h *Heartbeat) Send() error {
	if err := h.alive(); err != nil && h.others.Load() {
		return err
	}
	return h.send()
}

// SetOthers notes whether other nodes could answer.
func (h *Heartbeat) SetOthers(could bool) { h.others.Store(could) }
