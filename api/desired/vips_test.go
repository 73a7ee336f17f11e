// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func TestParseAddressOrName(t *testing.T) {
	for text, want := range map[string]string{
		"203.0.113.1": "203.0.113.1", " 2001:db8::1 ": "2001:db8::1", "2001-db8-0-0-0-0-0-1": "2001:db8::1", " 2001-db8-0-0-0-0-0-1": "2001:db8::1",
		"2001-db8--1": "", "203-0-113-1": "", "web": "", "0-0-0-0-0-ffff-cb00-7101": "",
	} {
		address, err := ParseAddressOrName(text)
		if (err != nil) != (want == "") || err == nil && address.String() != want {
			t.Errorf("%q is %v, %v, want %q", text, address, err, want)
		}
	}
}

func TestParseVIP(t *testing.T) {
	tests := []struct{ name, address, want, problem string }{
		{"203.0.113.1", "203.0.113.1", "203.0.113.1", ""},
		{"2001-db8-0-0-0-0-0-1", "2001:db8::1", "2001:db8::1", ""},
		{"203.0.113.1", "::ffff:203.0.113.1", "203.0.113.1", ""},
		{"web", "203.0.113.1", "", `metadata.name: the VIP of 203.0.113.1 must be named "203.0.113.1"`},
		{"web", "web", "", `spec.address: "web" is not an IP address`},
		{"224.0.0.1", "224.0.0.1", "", "spec.address: 224.0.0.1 is multicast"},
	}
	for _, test := range tests {
		vip := &millracev1beta1.VIP{ObjectMeta: metav1.ObjectMeta{Name: test.name}, Spec: millracev1beta1.VIPSpec{Address: test.address}}
		address, problems := ParseVIP(vip)
		switch {
		case test.problem == "" && (len(problems) > 0 || address.String() != test.want):
			t.Errorf("ParseVIP(%s, %s) = %s, %v", test.name, test.address, address, problems)
		case test.problem != "" && (len(problems) != 1 || !strings.HasPrefix(problems[0].Message, test.problem)):
			t.Errorf("ParseVIP(%s, %s) = %s, %v, want %q", test.name, test.address, address, problems, test.problem)
		}
	}
}
