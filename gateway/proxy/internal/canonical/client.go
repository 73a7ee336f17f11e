// SPDX-License-Identifier: Apache-2.0

package canonical

import (
	"net"
	"net/netip"
	"strings"
)

// Chain returns the trusted addresses of a request: the last hops entries of X-Forwarded-For, then the peer.
func Chain(remote string, forwarded []string, hops int) []string {
	peer, _, err := net.SplitHostPort(remote)
	if err != nil {
		peer = remote
	}
	if hops <= 0 {
		return []string{peer}
	}
	var chain []string
	for _, value := range forwarded {
		for entry := range strings.SplitSeq(value, ",") {
			chain = append(chain, strings.TrimSpace(entry))
		}
	}
	return append(chain[max(len(chain)-hops, 0):], peer)
}

// RealIP returns the value of X-Real-IP: the client's address, or the peer's if the proxies in front sent no address.
func RealIP(chain []string) string {
	if client := Client(chain); client.IsValid() {
		return client.String()
	}
	return chain[len(chain)-1]
}

// Client returns the first address of a chain without its port; invalid for an entry such as "unknown".
func Client(chain []string) netip.Addr {
	first := chain[0]
	address, err := netip.ParseAddr(first)
	if err != nil {
		with, err := netip.ParseAddrPort(first)
		if err != nil {
			return netip.Addr{}
		}
		address = with.Addr()
	}
	return address.Unmap().WithZone("")
}
