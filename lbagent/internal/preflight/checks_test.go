// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/netdev"
)

func fine() *Facts {
	return &Facts{
		Kernel: "6.12.48-amd64", BTF: true, BPFFS: true, Forwarding: map[string]bool{forwardIPv4: true, forwardIPv6: true},
		Uplinks:       []netdev.Link{{Name: "eth0", MTU: 1500, Ethernet: true, Up: true}},
		XDPInterfaces: []netdev.XDPInterface{{Name: "eth0", Native: true, Known: true}},
		Reached:       []Reachability{{Address: netip.MustParseAddr("198.51.100.2"), Answers: true, FullSize: true, Length: 1500}},
	}
}

func TestNoFindings(t *testing.T) {
	checks := map[string]bool{}
	for _, finding := range Evaluate(fine(), false) {
		checks[finding.Check] = true
		if finding.Level != consoleapi.LevelOK {
			t.Errorf("%+v", finding)
		}
	}
	if len(checks) < 10 {
		t.Errorf("only %v were reported", checks)
	}
}

// Each fault causes exactly its own finding.
func TestFaults(t *testing.T) {
	const warns, breaks = consoleapi.LevelWarning, consoleapi.LevelFault
	router := netip.MustParseAddrPort("198.51.100.254:179")
	tested := map[string]bool{}
	for name, test := range map[string]struct {
		check   string
		level   consoleapi.Level
		trip    func(*Facts)
		message string
	}{
		"old kernel":                 {CheckKernel, breaks, func(f *Facts) { f.Kernel = "5.15.0-101-generic" }, "6.1 or later"},
		"kernel before 6":            {CheckKernel, breaks, func(f *Facts) { f.Kernel = "5.4" }, "Linux 5.4"},
		"no tcx":                     {CheckTCX, warns, func(f *Facts) { f.Kernel = "6.1.0-40-amd64" }, "clsact"},
		"no BTF":                     {CheckBTF, breaks, func(f *Facts) { f.BTF = false }, "CONFIG_DEBUG_INFO_BTF"},
		"no bpffs":                   {CheckBPFFS, breaks, func(f *Facts) { f.BPFFS = false }, "mount -t bpf"},
		"no forwarding":              {CheckForwarding, breaks, func(f *Facts) { f.Forwarding[forwardIPv4] = false }, forwardIPv4},
		"no IPv6 forwarding":         {CheckForwarding, warns, func(f *Facts) { f.Forwarding[forwardIPv6] = false }, forwardIPv6},
		"no uplink":                  {CheckUplinks, breaks, func(f *Facts) { f.Uplinks = nil }, "--uplinks"},
		"WireGuard":                  {CheckUplinks, breaks, func(f *Facts) { f.Uplinks[0].Ethernet = false }, "Ethernet header"},
		"uplink down":                {CheckUplinks, warns, func(f *Facts) { f.Uplinks[0].Up = false }, "eth0 is down"},
		"foreign XDP program":        {CheckXDP, breaks, func(f *Facts) { f.XDPInterfaces[0].Program = 7 }, "id 7"},
		"no native XDP":              {CheckDriver, warns, func(f *Facts) { f.XDPInterfaces[0].Native = false }, "generic"},
		"Open vSwitch":               {CheckOVS, breaks, func(f *Facts) { f.XDPInterfaces[0].Kind = openVSwitch }, "eth0"},
		"port of Open vSwitch":       {CheckOVS, breaks, func(f *Facts) { f.XDPInterfaces[0].Master = openVSwitch }, "eth0"},
		"reverse path filter":        {CheckFilter, warns, func(f *Facts) { f.Filtered = []string{"eth1"} }, "net.ipv4.conf.eth1.rp_filter=2"},
		"no UDP port hash":           {CheckQueues, warns, func(f *Facts) { f.Unspread = []string{"eth0 hashes by addresses"} }, "eth0 hashes"},
		"legacy tables":              {CheckLegacy, warns, func(f *Facts) { f.Legacy = []string{"ip6tables-legacy"} }, "`ip6tables-legacy -S FORWARD`"},
		"port in use":                {CheckPorts, breaks, func(f *Facts) { f.Ports = []string{"TCP 7480"} }, "TCP 7480"},
		"Calico BGP sessions":        {CheckBGP, warns, func(f *Facts) { f.BGP = []Socket{{Remote: router}} }, "198.51.100.254"},
		"BIRD listening":             {CheckBGP, warns, func(f *Facts) { f.BGP = []Socket{{Listens: true}} }, "listens on TCP port 179"},
		"firewall":                   {CheckNodes, breaks, func(f *Facts) { f.Reached[0] = Reachability{Address: f.Reached[0].Address, Length: 1500} }, "198.51.100.2"},
		"probe port in use":          {CheckNodes, warns, func(f *Facts) { f.NotProbed, f.Reached = "in use", nil }, "was not tested: in use"},
		"MTU of 1500 in the network": {CheckMTU, breaks, func(f *Facts) { f.Reached[0].FullSize, f.Reached[0].Length = false, 9000 }, "9000 bytes"},
		"many unreachable nodes":     {CheckNodes, breaks, func(f *Facts) { f.Reached = make([]Reachability, 30) }, "and 22 more"},
	} {
		t.Run(name, func(t *testing.T) {
			facts := fine()
			test.trip(facts)
			bad := slices.DeleteFunc(Evaluate(facts, false), func(f consoleapi.Finding) bool { return f.Level == consoleapi.LevelOK })
			if len(bad) != 1 || bad[0].Check != test.check || bad[0].Level != test.level || !strings.Contains(bad[0].Message, test.message) {
				t.Errorf("findings = %+v, want a %s of %s with %q", bad, test.level, test.check, test.message)
			}
		})
		tested[test.check] = true
	}
	for _, check := range []string{
		CheckKernel, CheckBTF, CheckTCX, CheckBPFFS, CheckForwarding, CheckUplinks, CheckXDP, CheckDriver, CheckOVS, CheckFilter,
		CheckQueues, CheckLegacy, CheckPorts, CheckBGP, CheckNodes, CheckMTU,
	} {
		if !tested[check] {
			t.Errorf("%s is not covered by a test case", check)
		}
	}
}

func TestInstalled(t *testing.T) {
	facts := fine()
	facts.XDPInterfaces[0].Program, facts.Ports, facts.BGP = 7, []string{"TCP 7480"}, []Socket{{Listens: true}}
	for _, finding := range Evaluate(facts, true) {
		if finding.Level != consoleapi.LevelOK {
			t.Errorf("%+v", finding)
		}
	}
}
