// SPDX-License-Identifier: Apache-2.0

package canonical

import (
	"slices"
	"strings"
	"testing"
)

func TestClient(t *testing.T) {
	for _, test := range []struct {
		remote, forwarded string
		hops              int
		chain, client     string
	}{
		{"203.0.113.1:80", "", 0, "203.0.113.1", "203.0.113.1"},
		{"203.0.113.1:80", "198.51.100.1", 0, "203.0.113.1", "203.0.113.1"},
		{"[2001:db8::1]:80", "", 0, "2001:db8::1", "2001:db8::1"},
		{"[::ffff:203.0.113.1]:80", "", 0, "::ffff:203.0.113.1", "203.0.113.1"},
		{"[fe80::1%lo]:80", "", 0, "fe80::1%lo", "fe80::1"},
		// Entries before those of trusted proxies are ignored.
		{"203.0.113.1:80", "198.51.100.9, 198.51.100.1", 1, "198.51.100.1,203.0.113.1", "198.51.100.1"},
		{"203.0.113.1:80", "198.51.100.9|198.51.100.1", 1, "198.51.100.1,203.0.113.1", "198.51.100.1"},
		{"203.0.113.1:80", "198.51.100.9, 198.51.100.1, 203.0.113.2", 2, "198.51.100.1,203.0.113.2,203.0.113.1", "198.51.100.1"},
		// Fewer proxies than trusted.
		{"203.0.113.1:80", "198.51.100.1", 3, "198.51.100.1,203.0.113.1", "198.51.100.1"},
		{"203.0.113.1:80", "", 2, "203.0.113.1", "203.0.113.1"},
		{"203.0.113.1:80", "198.51.100.1:4711", 1, "198.51.100.1:4711,203.0.113.1", "198.51.100.1"},
		{"203.0.113.1:80", "[2001:db8::1]:4711", 1, "[2001:db8::1]:4711,203.0.113.1", "2001:db8::1"},
		{"203.0.113.1:80", "198.51.100.1, unknown", 1, "unknown,203.0.113.1", "invalid IP"},
		{"203.0.113.1:80", "198.51.100.1,", 1, ",203.0.113.1", "invalid IP"},
	} {
		var forwarded []string
		if test.forwarded != "" {
			forwarded = strings.Split(test.forwarded, "|")
		}
		chain := Chain(test.remote, forwarded, test.hops)
		if got, client := strings.Join(chain, ","), Client(chain).String(); got != test.chain || client != test.client {
			t.Errorf("%s, %q, %d hops: chain %s, client %s; want %s, %s",
				test.remote, test.forwarded, test.hops, got, client, test.chain, test.client)
		}
		if len(forwarded) > 0 && !slices.Equal(forwarded, strings.Split(test.forwarded, "|")) {
			t.Error("the header was modified")
		}
	}
}
