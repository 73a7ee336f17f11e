// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// SetTunnelKeys replaces the keys that packets between nodes are tagged with. They outlive the
// process.
func (d *Dataplane) SetTunnelKeys(keys forwarding.TunnelKeys) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := keys.Check(); err != nil {
		return fmt.Errorf("set the tunnel keys: %w", err)
	}
	d.tunnelKeys = keys
	return nil
}

// TunnelKeys returns the keys that were set last, by this process or one before it.
func (d *Dataplane) TunnelKeys() forwarding.TunnelKeys {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tunnelKeys
}
