// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
)

func addresses(texts ...string) []netip.Addr {
	list := make([]netip.Addr, 0, len(texts))
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// testDecisions has two VIPs with equal peers, one whose only session is down, and one without an
// endpoint.
func testDecisions() *Decisions {
	vips := addresses("203.0.113.1", "203.0.113.2", "203.0.113.3", "2001:db8:cafe::1")
	return &Decisions{
		Time: time.Unix(1000, 0),
		VIPs: []announce.Decision{
			{VIP: vips[0], Peers: []string{"r1", "r2"}},
			{VIP: vips[1], Reason: announce.ReasonNoEndpoints, Message: "no port of Service ns/web has a usable endpoint"},
			{VIP: vips[2], Peers: []string{"r1", "r2"}},
			{VIP: vips[3], Peers: []string{"r3"}},
		},
		Established: announce.Sessions{"r1": {IPv4: true, IPv6: true}, "r2": {IPv4: true, IPv6: true}},
	}
}

func TestVIPs(t *testing.T) {
	r := newRig(t, &plane{})
	if _, err := r.ask(t, Request{Command: VIPs}); err == nil || !strings.Contains(err.Error(), "first pass") {
		t.Errorf("before the first pass: %v", err)
	}
	r.decisions.Store(testDecisions())
	announced := consoleapi.VIPGroup{Peers: []string{"r1", "r2"}, Addresses: addresses("203.0.113.1", "203.0.113.3")}
	idle := consoleapi.VIPGroup{
		Reason: announce.ReasonNoEndpoints, Message: "no port of Service ns/web has a usable endpoint",
		Addresses: addresses("203.0.113.2"),
	}
	down := consoleapi.VIPGroup{
		Reason: millracev1beta1.ReasonNotEstablished, Message: "no session is established with r3",
		Addresses: addresses("2001:db8:cafe::1"),
	}
	first := announced
	first.Addresses = addresses("203.0.113.1")
	for name, test := range map[string]struct {
		asked []netip.Addr
		want  []consoleapi.VIPGroup
	}{
		"all":     {nil, []consoleapi.VIPGroup{announced, idle, down}},
		"some":    {addresses("2001:db8:cafe::1", "203.0.113.1"), []consoleapi.VIPGroup{first, down}},
		"unknown": {addresses("203.0.113.9"), []consoleapi.VIPGroup{}},
	} {
		t.Run(name, func(t *testing.T) {
			lines, err := r.ask(t, Request{Command: VIPs, Addresses: test.asked})
			if err != nil || len(lines) != 1 {
				t.Fatalf("%+v, %v", lines, err)
			}
			want := &consoleapi.VIPs{Node: "node1", Time: time.Unix(1000, 0).UTC(), Groups: test.want}
			if got := lines[0].VIPs; !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

func TestVIPsWithoutOneSession(t *testing.T) {
	decisions := testDecisions()
	delete(decisions.Established, "r2")
	groups := decisions.line(addresses("203.0.113.1")).Groups
	if len(groups) != 1 || !reflect.DeepEqual(groups[0].Peers, []string{"r1"}) {
		t.Errorf("%+v, want announced to r1", groups)
	}
	if decisions.VIPs[0].Peers[1] != "r2" {
		t.Error("the original decision was modified")
	}
}
