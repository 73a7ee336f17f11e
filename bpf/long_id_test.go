// SPDX-License-Identifier: Apache-2.0

package bpf_test

import "testing"

// Ids of more than 12 bits change only the length of packets between nodes.
func TestLongIDs(t *testing.T) {
	longIDs = true
	t.Cleanup(func() { longIDs = false })
	for name, test := range map[string]func(*testing.T){
		"ingress":       TestIngress,
		"fast path":     TestIngressPrepared,
		"next hop":      TestPreparedHop,
		"egress":        TestEgress,
		"tunnel":        TestTunnel,
		"tags":          TestTunnelTagCovers,
		"overrides":     TestOverrides,
		"second chance": TestChainLookupWithHistory,
		"zones":         TestZones,
		"local":         TestLocalOverrides,
		"primary down":  TestPrimaryDown,
		"agent silent":  TestAgentSilent,
		"probes":        TestProbes,
		"traces":        TestTrace,
	} {
		t.Run(name, test)
	}
}
