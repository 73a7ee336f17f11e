// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"net/netip"
	"testing"
)

const dump = `{
	"self": {"id": 1, "ipv4": "198.51.100.11", "ipv6": "2001:db8:0:1::11"},
	"nodes": [{"id": 2, "ipv4": "198.51.100.12", "ipv6": ""}],
	"vips": ["203.0.113.10"],
	"frontends": [
		{"vip": "203.0.113.10", "port": 80, "protocol": "TCP", "id": 1, "nodeTable": 1, "endpointTable": 2, "sources": 0},
		{"vip": "203.0.113.10", "port": 80, "protocol": "UDP", "id": 2, "ownEndpointsFirst": true, "sources": 0},
		{"vip": "203.0.113.10", "port": 82, "protocol": "TCP", "id": 3, "ownEndpointsFirst": true, "endpointTable": 2, "sources": 0}
	],
	"nodeTables": [{"slot": 1, "rows": {"1": 2740, "2": 1356}}],
	"endpointTables": [{"slot": 2, "rows": {"5": 256, "6": 256}}],
	"endpoints": [{"id": 5, "address": "198.18.1.5:8080"}, {"id": 6, "address": "198.18.1.6:8080"}, {"id": 7, "address": "198.18.1.7:8080"}]
}`

func TestParseMaps(t *testing.T) {
	maps, err := parseMaps([]byte(dump), netip.MustParseAddrPort("203.0.113.10:80"))
	if err != nil {
		t.Fatal(err)
	}
	set := func(addresses ...string) map[netip.Addr]bool {
		all := map[netip.Addr]bool{}
		for _, address := range addresses {
			all[netip.MustParseAddr(address)] = true
		}
		return all
	}
	if err := maps.check(set("198.18.1.5", "198.18.1.6")); err != nil || maps.local {
		t.Errorf("local is %t, %v", maps.local, err)
	}
	local, err := parseMaps([]byte(dump), netip.MustParseAddrPort("203.0.113.10:82"))
	if err != nil || !local.local || len(local.shares) > 0 {
		t.Errorf("of policy Local: %+v, %v", local, err)
	}
	for _, pods := range []map[netip.Addr]bool{set(), set("198.18.1.5"), set("198.18.1.5", "198.18.1.6", "198.18.1.7")} {
		if maps.check(pods) == nil {
			t.Errorf("endpoints %v were taken for %v", maps.endpoints, pods)
		}
	}
	nodes := map[string]netip.Addr{"node1": NodeAddress(1, ClientIPv4), "node2": NodeAddress(2, ClientIPv4)}
	for other, balanced := range map[string]map[netip.Addr]bool{
		"": set("198.18.2.5"), "two": set("198.18.2.5", "198.18.2.6"), "none": set(),
	} {
		pods := map[string]map[netip.Addr]bool{"node1": set("198.18.1.5", "198.18.1.6"), "node2": balanced}
		if err := maps.checkShares(nodes, pods); (err == nil) != (other == "") {
			t.Errorf("%d pods on node2: %v", len(balanced), err)
		}
	}
	if _, err := parseMaps([]byte(dump), netip.MustParseAddrPort("203.0.113.10:81")); !errors.Is(err, errNoFrontend) {
		t.Errorf("another port: %v", err)
	}
}
