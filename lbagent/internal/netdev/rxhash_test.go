// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"strings"
	"testing"
)

func TestUnspreadTunnel(t *testing.T) {
	const addresses, all = 0x30, 0xf0
	for name, test := range map[string]struct {
		hashFields hashFields
		want       []string
	}{
		"hash by ports":            {hashFields{8, map[uint32]uint64{udpOverIPv4: all, udpOverIPv6: all}}, nil},
		"IPv4 hash by addresses":   {hashFields{8, map[uint32]uint64{udpOverIPv4: addresses, udpOverIPv6: all}}, []string{"rx-flow-hash udp4 sdfn"}},
		"both hashes by addresses": {hashFields{8, map[uint32]uint64{udpOverIPv4: addresses, udpOverIPv6: addresses}}, []string{"udp4 sdfn", "udp6 sdfn"}},
		"single queue":             {hashFields{1, map[uint32]uint64{udpOverIPv4: addresses}}, nil},
		"not reported":             {hashFields{8, nil}, nil},
		"no UDP hash":              {hashFields{8, map[uint32]uint64{tcpOverIPv4: all, udpOverIPv4: 0}}, []string{"udp4 sdfn"}},
		"no hash":                  {hashFields{8, map[uint32]uint64{tcpOverIPv4: 0, udpOverIPv4: 0, tcpOverIPv6: 0, udpOverIPv6: 0}}, nil},
		"destination port only":    {hashFields{8, map[uint32]uint64{udpOverIPv4: addresses | 1<<7}}, []string{"udp4 sdfn"}},
	} {
		got := test.hashFields.problems("eth0")
		if len(got) != len(test.want) {
			t.Errorf("%s: %q, want %d problems", name, got, len(test.want))
			continue
		}
		for i, part := range test.want {
			if !strings.Contains(got[i], part) || !strings.Contains(got[i], "-N eth0") {
				t.Errorf("%s: problem %q, want it to contain %q", name, got[i], part)
			}
		}
	}
	if told := SingleQueueTunnels([]string{"lo", "absent0", "a-name-that-is-too-long"}); told != nil {
		t.Errorf("problems %q for virtual interfaces, want none", told)
	}
}
