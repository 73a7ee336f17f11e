// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"github.com/millrace-lb/millrace/api/tunnelkey"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Keys derives probe keys from tunnel keys. The first one signs probes, and all are accepted. Until all
// nodes have tunnel keys, the zero key is accepted too; it proves only the source address.
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
