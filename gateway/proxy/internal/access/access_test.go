// SPDX-License-Identifier: Apache-2.0

package access

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func TestAdmits(t *testing.T) {
	for _, test := range []struct {
		name        string
		allow, deny []string
		in, out     []string
	}{
		{
			"allow", []string{"198.51.100.0/24", "203.0.113.7", "2001:db8:1::/48"}, nil,
			[]string{"198.51.100.255", "203.0.113.7", "2001:db8:1::1", "::ffff:198.51.100.1"},
			[]string{"198.51.101.0", "203.0.113.8", "2001:db8:2::1", "::1"},
		},
		{"deny", nil, []string{"198.51.100.0/24"}, []string{"198.51.101.1", "2001:db8::1"}, []string{"198.51.100.1", "::ffff:198.51.100.1"}},
		{
			"deny has precedence", []string{"198.51.100.0/24"}, []string{"198.51.100.64/26"},
			[]string{"198.51.100.63", "198.51.100.128"}, []string{"198.51.100.64", "198.51.100.127", "203.0.113.1"},
		},
		{"bits after the prefix", []string{"198.51.100.9/24"}, nil, []string{"198.51.100.1"}, []string{"198.51.101.1"}},
		{"a zone", []string{"fe80::/10"}, nil, []string{"fe80::1%eth0"}, []string{"2001:db8::1"}},
		{"IPv4-mapped IPv6", []string{"::ffff:198.51.100.0/120"}, []string{"::ffff:198.51.100.1"}, []string{"198.51.100.2"}, []string{"198.51.100.1", "198.51.101.1"}},
		{"all IPv4 addresses", nil, []string{"0.0.0.0/0"}, []string{"2001:db8::1"}, []string{"198.51.100.1"}},
	} {
		list, err := New(&resource.ClientAddresses{Allow: test.allow, Deny: test.deny})
		if err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		for _, client := range test.in {
			if !list.Admits(netip.MustParseAddr(client)) {
				t.Errorf("%s: %s is denied", test.name, client)
			}
		}
		for _, client := range test.out {
			if list.Admits(netip.MustParseAddr(client)) {
				t.Errorf("%s: %s is admitted", test.name, client)
			}
		}
		if list.Admits(netip.Addr{}) {
			t.Errorf("%s: a client without an address is admitted", test.name)
		}
	}
}

func TestUnreadable(t *testing.T) {
	for _, text := range []string{
		"", " ", "198.51.100.0/33", "198.51.100.0/", "198.51.100/24", "a.example", "198.51.100.1 ", "fe80::1%eth0", "fe80::%eth0/64",
		"::ffff:0.0.0.0/95", "198.51.100.1-198.51.100.9", "198.51.100.0/24,203.0.113.0/24",
	} {
		for _, from := range []*resource.ClientAddresses{{Allow: []string{text}}, {Deny: []string{text}}} {
			if _, err := New(from); err == nil {
				t.Errorf("no error for %q", text)
			}
		}
	}
	if _, err := New(&resource.ClientAddresses{}); err == nil {
		t.Error("a list without entries admits clients")
	}
}

// TestListMatchesPrefixes compares a list with checks of its single prefixes.
func TestListMatchesPrefixes(t *testing.T) {
	prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
		address := netip.AddrFrom4([4]byte{198, 51, byte(rapid.IntRange(100, 101).Draw(t, "third")), rapid.Byte().Draw(t, "last")})
		return netip.PrefixFrom(address, rapid.IntRange(20, 32).Draw(t, "bits"))
	})
	contains := func(prefixes []netip.Prefix, client netip.Addr) bool {
		for _, each := range prefixes {
			if each.Contains(client) {
				return true
			}
		}
		return false
	}
	rapid.Check(t, func(t *rapid.T) {
		allow := rapid.SliceOfN(prefix, 0, 5).Draw(t, "allow")
		deny := rapid.SliceOfN(prefix, 0, 5).Draw(t, "deny")
		from := &resource.ClientAddresses{}
		for _, each := range allow {
			from.Allow = append(from.Allow, each.String())
		}
		for _, each := range deny {
			from.Deny = append(from.Deny, each.String())
		}
		list, err := New(from)
		if err != nil {
			if len(allow)+len(deny) > 0 {
				t.Fatal(err)
			}
			return
		}
		client := prefix.Draw(t, "client").Addr()
		want := !contains(deny, client) && (len(allow) == 0 || contains(allow, client))
		if got := list.Admits(client); got != want {
			t.Fatalf("%s: %v; want %v", client, got, want)
		}
	})
}
