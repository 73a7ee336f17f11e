// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"strings"
	"testing"
)

func TestParseRange(t *testing.T) {
	tests := []struct {
		text string
		want string
		err  string
	}{
		{text: "203.0.113.0/24", want: "203.0.113.0/24"},
		{text: "203.0.113.10-203.0.113.20", want: "203.0.113.10-203.0.113.20"},
		{text: " 203.0.113.10 - 203.0.113.10 ", want: "203.0.113.10"},
		{text: "203.0.113.10", want: "203.0.113.10"},
		{text: "2001:db8:1::/64", want: "2001:db8:1::/64"},
		{text: "2001:db8::1-2001:db8::ff", want: "2001:db8::1-2001:db8::ff"},
		{text: "::ffff:203.0.113.1", want: "203.0.113.1"},
		{text: "203.0.113.20-203.0.113.10",
			err: "range 203.0.113.20-203.0.113.10 is inverted: the first address must not be higher than the last"},
		{text: "203.0.113.1-2001:db8::1", err: "mixes families"},
		{text: "203.0.113.0-203.0.113.7", want: "203.0.113.0/29"},
		{text: "203.0.113.1/24", err: "write 203.0.113.0/24"},
		{text: "10.0.0.1/8", err: `"10.0.0.1/8" has host bits set: write 10.0.0.0/8`},
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
			if test.err == "" && (err != nil || rangeText(got) != test.want) {
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
		if !r.IsValid() || r.From().Is4In6() || r.To().Is4In6() || r.From().Zone() != "" {
			t.Fatalf("ParseRange(%q) = %s", text, r)
		}
		if again, err := ParseRange(rangeText(r)); err != nil || again != r {
			t.Fatalf("ParseRange(%q) = %s, read again %s, %v", text, r, again, err)
		}
		if set := setOf(r); !set.Contains(r.From()) || !set.Contains(r.To()) {
			t.Fatalf("the set of %s is %v", r, set.Ranges())
		}
	})
}

func TestParseHost(t *testing.T) {
	for text, want := range map[string]string{
		"203.0.113.1": "", " 2001:DB8::0:1 ": "", "::ffff:203.0.113.1": "", "10.0.0.0": "", "240.0.0.1": "",
		"0.0.0.1": "unspecified", "127.0.0.2": "loopback", "169.254.1.1": "link-local", "224.0.0.1": "multicast",
		"255.255.255.255": "broadcast", "::": "unspecified", "::1": "loopback", "fe80::1": "link-local", "ff05::1": "multicast",
		"fe80::1%eth0": "has a zone", "node1": "is not an IP address", "": "is not an IP address",
	} {
		address, err := ParseHost(text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("ParseHost(%q) = %s, %v, want an error with %q", text, address, err, want)
		}
	}
}
