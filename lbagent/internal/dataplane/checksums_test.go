// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// checksumWays are the computations of reply checksums. Without offload on the uplink, the kernel computes
// them after the egress program, which then sees only the pseudo-header sum. Nothing beyond the uplink
// corrects them.
var checksumWays = map[string]string{
	"the pod":                         "tx off",
	"after the program":               "tx on tso off gso off",
	"after the program, GSO segments": "tx on tso on gso on",
}

// Replies, including retransmissions, have valid checksums.
func TestChecksumsOfReplies(t *testing.T) {
	n := startNetwork(t, false)
	for _, node := range n.nodes {
		setFeatures(t, node.name, node.uplink.Name, "tx off")
	}
	loseSegments(t)
	for way, features := range checksumWays {
		t.Run(way, func(t *testing.T) {
			for _, pod := range testPods {
				setFeatures(t, pod.name, "eth0", features)
			}
			before, again := wrongChecksums(t), segmentsSentAgain(t)
			for _, vip := range []netip.Addr{vip4, vip6} {
				to := netip.AddrPortFrom(vip, clusterPort)
				if err := connect(t, to).exchange(500_000, 500_000); err != nil {
					t.Errorf("%s: %v", to, err)
				}
				askUDP(t, to, 1000)
			}
			if wrong := wrongChecksums(t) - before; wrong != 0 {
				t.Errorf("the client received %d packets with wrong checksums", wrong)
			}
			if segmentsSentAgain(t) == again {
				t.Error("the pods retransmitted no segment")
			}
		})
	}
}

func setFeatures(t *testing.T, namespace, device, features string) {
	t.Helper()
	run(t, "ip", append([]string{"netns", "exec", namespace, "ethtool", "-K", device}, strings.Fields(features)...)...)
}

// loseSegments makes the client drop a tenth of the segments of established connections.
func loseSegments(t *testing.T) {
	t.Helper()
	run(t, "ip", "netns", "exec", "client", "nft", `
		add table inet loss
		add chain inet loss in { type filter hook prerouting priority 0; }
		add rule inet loss in tcp flags & (syn | fin | rst) == 0 numgen inc mod 10 == 9 drop`)
}

// wrongChecksums returns the client's checksum errors. The TCP counters are of both families.
func wrongChecksums(t *testing.T) int {
	t.Helper()
	return networkCounter(t, "client", "snmp", "Tcp:", "InCsumErrors") +
		networkCounter(t, "client", "snmp", "Udp:", "InCsumErrors") +
		networkCounter(t, "client", "snmp6", "Udp6InCsumErrors", "")
}

func segmentsSentAgain(t *testing.T) int {
	t.Helper()
	total := 0
	for _, pod := range testPods {
		total += networkCounter(t, pod.name, "snmp", "Tcp:", "RetransSegs")
	}
	return total
}

// networkCounter reads a counter of the kernel: a file has lines of a name and a value, or pairs of lines
// with the names and values of a protocol.
func networkCounter(t *testing.T, namespace, file, first, name string) int {
	t.Helper()
	value, found := 0, false
	inNamespace(t, namespace, func() error {
		text, err := os.ReadFile("/proc/thread-self/net/" + file)
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) == 0 || fields[0] != first {
				continue
			}
			at := 1
			if name != "" {
				if names == nil {
					names = fields
					continue
				}
				at = slices.Index(names, name)
			}
			if at < 0 || at >= len(fields) {
				break
			}
			value, err = strconv.Atoi(fields[at])
			found = err == nil
			return err
		}
		return nil
	})
	if !found {
		t.Fatalf("counter %s %s not found in %s of %s", first, name, file, namespace)
	}
	return value
}
