// SPDX-License-Identifier: Apache-2.0

package bgp

// restartState is the bit of graceful restart's flags that says that the speaker has restarted.
const restartState = 0x80

// withoutRestart is an OPEN of GoBGP's without the Restart State bit (RFC 4724, section 3). GoBGP
// sets it wherever the Forwarding State bits are set. Those are right after a connection was lost:
// without them the router drops the routes that it kept. But this node has not restarted then. A
// router that has would not wait for the routes of one that says so (RFC 4724, section 4.1).
func withoutRestart(open []byte) []byte {
	// fixed are version, system, hold time and identifier (RFC 4271, section 4.2).
	const fixed = 9
	changed := append([]byte(nil), open...)
	if len(changed) <= headerLength+fixed {
		return changed
	}
	parameters, ok := prefixed(changed[headerLength+fixed:])
	for ok && len(parameters) > 2 && parameters[0] == parameterCapabilities {
		var capabilities []byte
		capabilities, ok = prefixed(parameters[1:])
		parameters = parameters[min(len(parameters), 2+len(capabilities)):]
		for more := ok; more && len(capabilities) > 2; {
			var value []byte
			if value, more = prefixed(capabilities[1:]); capabilities[0] == capabilityRestart && len(value) > 0 {
				value[0] &^= restartState
			}
			capabilities = capabilities[min(len(capabilities), 2+len(value)):]
		}
	}
	return changed
}

// prefixed is what follows its length in one octet.
func prefixed(octets []byte) ([]byte, bool) {
	if len(octets) == 0 || len(octets) < 1+int(octets[0]) {
		return nil, false
	}
	return octets[1 : 1+int(octets[0])], true
}
