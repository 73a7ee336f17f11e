// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func TestAnswer(t *testing.T) {
	name := dnsmessage.MustNewName("foo.bar.com.")
	for _, test := range []struct {
		client string
		kind   dnsmessage.Type
		want   string
	}{
		{"198.51.100.130", dnsmessage.TypeA, "198.51.100.130"},
		{"2001:db8::130", dnsmessage.TypeAAAA, "2001:db8::130"},
		{"2001:db8::130", dnsmessage.TypeA, ""},
	} {
		query := dnsmessage.Message{
			Header:    dnsmessage.Header{ID: 7},
			Questions: []dnsmessage.Question{{Name: name, Type: test.kind, Class: dnsmessage.ClassINET}},
		}
		packed, err := query.Pack()
		if err != nil {
			t.Fatal(err)
		}
		raw, err := answer(packed, netip.MustParseAddr(test.client))
		if err != nil {
			t.Fatal(err)
		}
		var got dnsmessage.Message
		if err := got.Unpack(raw); err != nil {
			t.Fatal(err)
		}
		address := ""
		for _, resource := range got.Answers {
			switch body := resource.Body.(type) {
			case *dnsmessage.AResource:
				address = netip.AddrFrom4(body.A).String()
			case *dnsmessage.AAAAResource:
				address = netip.AddrFrom16(body.AAAA).String()
			}
		}
		if got.ID != 7 || !got.Response || address != test.want {
			t.Errorf("%s requests %s: got %+v, want address %q", test.client, test.kind, got, test.want)
		}
	}
	if _, err := answer([]byte("no DNS"), netip.Addr{}); err == nil {
		t.Error("no error for a message that is not a DNS query")
	}
}
