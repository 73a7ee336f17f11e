// SPDX-License-Identifier: Apache-2.0

package bgp

const restartState = 0x80

// withoutRestart returns GoBGP's OPEN with the Restart State bit cleared (RFC 4724, section 3). GoBGP sets
// it together with the Forwarding State bits. After a lost connection the router needs the latter to retain
// our routes, but this node has not restarted, and a restarted router does not wait for the End-of-RIB of a
// peer that has restarted, too (section 4.1).
func withoutRestart(open []byte) []byte {
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

// prefixed returns the content after a one-octet length.
func prefixed(octets []byte) ([]byte, bool) {
	if len(octets) == 0 || len(octets) < 1+int(octets[0]) {
		return nil, false
	}
	return octets[1 : 1+int(octets[0])], true
}
