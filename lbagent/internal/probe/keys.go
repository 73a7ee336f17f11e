// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"github.com/millrace-lb/millrace/api/tunnelkey"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Keys are the keys of probes that come with tunnel keys. The first is to prove probes with, all
// are to be believed. Until all nodes have tunnel keys, one of zeros is believed, too: such
// probes say only that they came from a node's address, by the uplinks that lead to it.
func Keys(tunnel forwarding.TunnelKeys) []Key {
	var keys []Key
	if tunnel.Sending == 0 {
		keys = append(keys, Key{})
	}
	for _, sending := range []bool{true, false} {
		for _, key := range tunnel.Accepted {
			if (key.Number == tunnel.Sending) == sending {
				keys = append(keys, derive(key))
			}
		}
	}
	if tunnel.Sending != 0 && !tunnel.Required {
		keys = append(keys, Key{})
	}
	return keys
}

func derive(key forwarding.TunnelKey) Key {
	derived := tunnelkey.Derive(key.Secret, tunnelkey.LabelMembership)
	return Key(derived[:KeySize])
}
