// SPDX-License-Identifier: Apache-2.0

package hostcheck

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/forwardpolicy"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// TestFirewallExpectedRules checks that the firewall is evaluated for one pod of each family and each uplink, in
// both directions.
func TestFirewallExpectedRules(t *testing.T) {
	at := netip.MustParseAddr
	m := &model.Model{Frontends: []*model.Frontend{
		{Endpoints: []forwarding.Endpoint{{Address: at("198.18.1.3")}, {Address: at("198.51.100.11")}, {Address: at("2001:db8::2")}}},
		{Endpoints: []forwarding.Endpoint{{Address: at("198.18.1.2")}}},
	}}
	m.Self.IPv4 = at("198.51.100.11")
	var f firewall
	f.setModel(m, []string{"eth0"})
	want := []forwardpolicy.Packet{
		{In: "eth0", Destination: at("198.18.1.2")}, {Out: "eth0", Source: at("198.18.1.2"), Established: true},
		{In: "eth0", Destination: at("2001:db8::2")}, {Out: "eth0", Source: at("2001:db8::2"), Established: true},
	}
	if got := f.served.Load().packets(); !slices.Equal(got, want) {
		t.Errorf("packets = %+v, want %+v", got, want)
	}
}

// TestFirewallReports checks that the problem changes with the dropping chains, and remains if they cannot
// be read.
func TestFirewallReports(t *testing.T) {
	var f firewall
	drops := []string{}
	fails := error(nil)
	dropping := func(*forwardpolicy.Packet) ([]string, error) { return drops, fails }
	step := func(name string, changed bool, told string) {
		t.Helper()
		got, err := f.observe(dropping)
		if got != changed || f.text() != told || !errors.Is(err, fails) {
			t.Errorf("%s: changed %t, text %q, %v; want %t, %q", name, got, f.text(), err, changed, told)
		}
	}
	drops = []string{"ip filter FORWARD"}
	step("no known pods", false, "")
	f.setModel(&model.Model{Frontends: []*model.Frontend{
		{Endpoints: []forwarding.Endpoint{{Address: netip.MustParseAddr("198.18.1.2")}}},
	}}, []string{"eth0"})
	step("dropped", true, "ip filter FORWARD")
	step("unchanged", false, "ip filter FORWARD")
	if got := f.problems(); len(got) != 1 {
		t.Errorf("problems = %q, want one", got)
	}
	fails = errors.New("no nftables")
	drops = nil
	step("read error", false, "ip filter FORWARD")
	fails = nil
	step("accepted", true, "")
	if got := f.problems(); got != nil {
		t.Errorf("problems = %q, want none", got)
	}
}
