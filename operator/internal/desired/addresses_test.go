// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

func TestParseRange(t *testing.T) {
	tests := []struct {
		text string
		want string
		err  string
	}{
		{text: "203.0.113.0/24", want: "203.0.113.0-203.0.113.255"},
		{text: "203.0.113.10-203.0.113.20", want: "203.0.113.10-203.0.113.20"},
		{text: " 203.0.113.10 - 203.0.113.10 ", want: "203.0.113.10"},
		{text: "203.0.113.10", want: "203.0.113.10"},
		{text: "2001:db8:1::/64", want: "2001:db8:1::-2001:db8:1:0:ffff:ffff:ffff:ffff"},
		{text: "2001:db8::1-2001:db8::ff", want: "2001:db8::1-2001:db8::ff"},
		{text: "::ffff:203.0.113.1", want: "203.0.113.1"},
		{text: "203.0.113.20-203.0.113.10",
			err: "range 203.0.113.20-203.0.113.10 is inverted: the first address must not be higher than the last"},
		{text: "203.0.113.1-2001:db8::1", err: "mixes families"},
		{text: "203.0.113.1/24", err: "write 203.0.113.0/24"},
		{text: "203.0.113.0/33", err: "is not a CIDR"},
		{text: "::ffff:203.0.113.0/120", err: "write it as IPv4"},
		{text: "fe80::1%eth0", err: "has a zone"},
		{text: "203.0.113.1-", err: `"" is not an IP address`},
		{text: "203.0.113.1-203.0.113.2-203.0.113.3", err: "is not an IP address"},
		{text: "", err: "is not an IP address"},
		{text: "web", err: `"web" is not an IP address`},
	}
	for _, test := range tests {
		t.Run(test.text, func(t *testing.T) {
			got, err := ParseRange(test.text)
			if test.err == "" && (err != nil || got.String() != test.want) {
				t.Errorf("ParseRange = %s, %v, want %s", got, err, test.want)
			}
			if test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("ParseRange = %s, %v, want an error with %q", got, err, test.err)
			}
		})
	}
}

func FuzzParseRange(f *testing.F) {
	for _, seed := range []string{
		"203.0.113.0/24", "203.0.113.10-203.0.113.20", "2001:db8::/32", "2001:db8::1-2001:db8::2",
		"::/0", "0.0.0.0/0", "::ffff:203.0.113.1-203.0.113.2", "fe80::1%eth0", "-", "/", "1-/",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRange(text)
		if err != nil {
			return
		}
		if !r.First.IsValid() || r.Last.Less(r.First) || ipam.FamilyOf(r.First) != ipam.FamilyOf(r.Last) ||
			r.First.Is4In6() || r.Last.Is4In6() || r.First.Zone() != "" || r.Last.Zone() != "" {
			t.Fatalf("ParseRange(%q) = %s", text, r)
		}
		if again, err := ParseRange(r.String()); err != nil || again != r {
			t.Fatalf("ParseRange(%q) = %s, read again %s, %v", text, r, again, err)
		}
		if set := ipam.NewSet(r); !set.Contains(r.First) || !set.Contains(r.Last) || set.Count() < 1 {
			t.Fatalf("the set of %s is %v", r, set.Ranges())
		}
	})
}
