// SPDX-License-Identifier: Apache-2.0

package serving

import (
	"net"
	"testing"
)

func TestSourceOf(t *testing.T) {
	for remote, want := range map[string]string{
		"198.51.100.9:1":            "198.51.100.9/32",
		"[::ffff:198.51.100.9]:1":   "198.51.100.9/32",
		"[2001:db8:0:1:2:3:4:5]:80": "2001:db8:0:1::/64",
		"[fe80::1%1]:80":            "fe80::/64",
	} {
		address, err := net.ResolveTCPAddr("tcp", remote)
		if err != nil {
			t.Fatal(err)
		}
		if got := sourceOf(address).String(); got != want {
			t.Errorf("%s is of source %s, want %s", remote, got, want)
		}
	}
}
