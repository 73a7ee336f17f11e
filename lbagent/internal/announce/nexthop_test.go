// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"slices"
	"testing"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

func TestNextHop(t *testing.T) {
	m := &model.Model{NextHops: map[string]model.NextHops{"r": {IPv4: node4, IPv6: node6}, "only6": {IPv6: node6}}}
	for _, test := range []struct {
		peer     string
		extended bool
		vip      netip.Addr
		want     netip.Addr
	}{
		{"r", false, vip4, node4},
		{"r", false, vip6, node6},
		{"r", true, vip4, node6},
		{"r", true, vip6, node6},
		{"only6", false, vip4, netip.Addr{}},
		{"only6", true, vip4, node6},
	} {
		if got := nextHop(m, &model.Peer{Name: test.peer, ExtendedNextHop: test.extended}, test.vip); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
}

func TestObserved(t *testing.T) {
	sessions := Sessions{"both": {IPv4: true, IPv6: true}, "only6": {IPv6: true}}
	for name, test := range map[string]struct {
		vip     netip.Addr
		peers   []string
		want    []string
		message string
	}{
		"both":                   {vip4, []string{"both", "down"}, []string{"both"}, ""},
		"one peer has a session": {vip4, []string{"both", "only6"}, []string{"both"}, ""},
		"both peers, IPv6":       {vip6, []string{"both", "only6"}, []string{"both", "only6"}, ""},
		"not established":        {vip4, []string{"down"}, nil, "no session is established with down"},
		"withheld":               {vip4, []string{"down", "only6"}, nil, "no session carries IPv4 routes with down, only6"},
	} {
		got := Decision{VIP: test.vip, Peers: test.peers}.Observed(sessions)
		if !slices.Equal(got.Peers, test.want) || got.Message != test.message ||
			(got.Reason == millracev1beta1.ReasonNotEstablished) != (test.message != "") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
