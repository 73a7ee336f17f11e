// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"strings"
	"testing"
)

func TestMissed(t *testing.T) {
	fine := result{packets: 1000, encapsulated: 0.7, latencyBefore: 10, latencyDuring: 20}
	with := func(change func(*result)) result {
		got := fine
		change(&got)
		return got
	}
	untrustedHosts, forged := kind{name: "ack"}, kind{name: "tunnel", byNodes: true}
	for _, test := range []struct {
		name string
		kind kind
		got  result
		want string
	}{
		{"nothing noticed", untrustedHosts, fine, ""},
		{"nothing was sent", untrustedHosts, with(func(r *result) { r.packets = 0 }), "nothing was sent"},
		{"one connection broke", untrustedHosts, with(func(r *result) { r.broken = 1 }), "1 broken"},
		{"answers took longer", untrustedHosts, with(func(r *result) { r.latencyDuring = 21 }), "answers took 2.1 times as long"},
		{"packets multiplied", untrustedHosts, with(func(r *result) { r.encapsulated = 2.01 }), "2.01 encapsulated packets"},
		{"forged packet reached other nodes", forged, fine, "0.70 encapsulated packets"},
		{"none did", forged, with(func(r *result) { r.encapsulated = 0 }), ""},
	} {
		if got := strings.Join(test.kind.missed(test.got), ", "); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestCheck(t *testing.T) {
	if err := Check([]string{"syn", "tunnel"}); err != nil {
		t.Error(err)
	}
	if err := Check([]string{"syn", "nonsense"}); err == nil {
		t.Error("no error for an unknown flood")
	}
}

// TestParseCounter parses output of nft 1.0.6.
func TestParseCounter(t *testing.T) {
	const listed = `{"nftables": [{"metainfo": {"version": "1.0.6", "release_name": "Lester Gooch #5", "json_schema_version": 1}},
		{"counter": {"family": "netdev", "name": "encapsulated", "table": "millrace_flood", "handle": 2, "packets": 41, "bytes": 9}}]}`
	if got, err := parseCounter([]byte(listed)); err != nil || got != 41 {
		t.Errorf("%d, %v: want 41", got, err)
	}
	for _, wrong := range []string{"", `{"nftables": []}`} {
		if _, err := parseCounter([]byte(wrong)); err == nil {
			t.Errorf("%q: want an error", wrong)
		}
	}
}
