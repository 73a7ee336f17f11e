// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"github.com/millrace-lb/millrace/bpf"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func tunnelKey(number uint8) forwarding.TunnelKey {
	return forwarding.TunnelKey{Number: number, Secret: [forwarding.TunnelSecretSize]byte{number, 31: 0xff}}
}

// keys are accepted; sending is the key of sent packets, or zero.
func tunnelKeys(required bool, sending uint8, accepted ...uint8) forwarding.TunnelKeys {
	keys := forwarding.TunnelKeys{Sending: sending, Required: required}
	for _, number := range accepted {
		keys.Accepted = append(keys.Accepted, tunnelKey(number))
	}
	return keys
}

func setTunnelKeys(t *testing.T, d *Dataplane, keys forwarding.TunnelKeys) {
	t.Helper()
	if err := d.SetTunnelKeys(keys); err != nil {
		t.Fatal(err)
	}
}

// All versions must expand a secret equally.
func TestExpandKey(t *testing.T) {
	key, err := expandKey([forwarding.TunnelSecretSize]byte{1, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%016x %016x %016x", key.Start[0], key.Start[1], key.Pair[len(key.Pair)-1].Word[3])
	// HKDF-SHA256 of OpenSSL: openssl kdf -keylen 368 -kdfopt digest:SHA256 -kdfopt
	// hexkey:0102030000… -kdfopt "info:millrace tunnel tag 1" HKDF; words are little-endian.
	const want = "49724c9a98c552a2 60d7f09e59b63f33 acc353ca39a01f14"
	if got != want {
		t.Errorf("words = %s, want %s", got, want)
	}
}

// The maps hold the last keys, also after a restart. Retired keys are wiped.
func TestSetTunnelKeys(t *testing.T) {
	cfg := smallConfig(mountBPF(t))
	d := openDataplane(t, cfg)
	check := func(step string, keys forwarding.TunnelKeys) {
		t.Helper()
		var policy bpf.DatapathTunnelPolicy
		var self bpf.DatapathSelf
		if err := d.maps.TunnelPolicies.Lookup(uint32(0), &policy); err != nil {
			t.Fatal(err)
		}
		if err := d.maps.Settings.Lookup(uint32(0), &self); err != nil {
			t.Fatal(err)
		}
		if got := policy.Flags & uint32(bpf.DatapathTunnelPolicyFlagPOLICY_TAGS); (got != 0) != keys.Required {
			t.Errorf("%s: flags %#x, required %v", step, policy.Flags, keys.Required)
		}
		if got := self.Flags / uint32(bpf.DatapathSelfFlagSELF_KEY); got != uint32(keys.Sending) {
			t.Errorf("%s: sends with key %d, want %d", step, got, keys.Sending)
		}
		want := map[uint8]bpf.DatapathTunnelKey{}
		for _, key := range keys.Accepted {
			words, err := expandKey(key.Secret)
			if err != nil {
				t.Fatal(err)
			}
			want[key.Number] = words
		}
		for number := range uint8(forwarding.MaxTunnelKey + 1) {
			var words bpf.DatapathTunnelKey
			if err := d.maps.TunnelKeys.Lookup(uint32(number), &words); err != nil {
				t.Fatal(err)
			}
			if words != want[number] {
				t.Errorf("%s: key %d = %x, want %x", step, number, words.Start, want[number].Start)
			}
			_, accepted := want[number]
			if got := policy.Flags&(uint32(bpf.DatapathTunnelPolicyFlagPOLICY_KEY)<<number) != 0; number > 0 && got != accepted {
				t.Errorf("%s: key %d accepted: %v, want %v", step, number, got, accepted)
			}
		}
		if got := d.TunnelKeys(); !reflect.DeepEqual(got, keys) {
			t.Errorf("%s: TunnelKeys = %v, want %v", step, got, keys)
		}
		if self.Flags&uint32(bpf.DatapathSelfFlagSELF_NO_TRANSMIT) != d.self.Flags&uint32(bpf.DatapathSelfFlagSELF_NO_TRANSMIT) {
			t.Errorf("%s: other flags changed: %#x", step, self.Flags)
		}
	}
	check("new", forwarding.TunnelKeys{})
	for i, keys := range []forwarding.TunnelKeys{
		tunnelKeys(false, 0, 1), tunnelKeys(true, 1, 1), tunnelKeys(true, 1, 1, 2), tunnelKeys(true, 2, 1, 2), tunnelKeys(true, 2, 2),
		tunnelKeys(true, 4, 4), {}, tunnelKeys(true, 3, 3, 4),
	} {
		setTunnelKeys(t, d, keys)
		check(fmt.Sprint("step ", i), keys)
	}
	last := tunnelKeys(true, 3, 3, 4)
	if err := d.SetTunnelKeys(tunnelKeys(true, 2, 1)); err == nil {
		t.Error("no error for an inconsistent key ring")
	}
	check("after a failure", last)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openDataplane(t, cfg)
	check("restart", last)
	setTunnelKeys(t, d, tunnelKeys(false, 1, 1))
	check("changed after the restart", tunnelKeys(false, 1, 1))
}

// Rotation from no key to a required one, and to the next, node by node under load, without loss. A node with
// a retired key is rejected.
func TestTunnelKeyRotation(t *testing.T) {
	n := startNetwork(t, false)
	running := startLoad(t, netip.AddrPortFrom(vip4, clusterPort), netip.AddrPortFrom(vip6, clusterPort))
	defer running.end()
	running.await(t, 100)
	for _, keys := range []forwarding.TunnelKeys{
		tunnelKeys(false, 0, 1), tunnelKeys(false, 1, 1), tunnelKeys(true, 1, 1),
		tunnelKeys(true, 1, 1, 2), tunnelKeys(true, 2, 1, 2), tunnelKeys(true, 2, 2),
	} {
		for _, node := range n.nodes {
			setTunnelKeys(t, node.dataplane, keys)
			running.await(t, 50)
		}
	}
	running.end()
	for _, node := range n.nodes {
		checkNoDrops(t, node)
	}
	setTunnelKeys(t, n.nodes[0].dataplane, tunnelKeys(true, 1, 1, 2))
	for i := range 64 {
		conn := dialUDP(t, netip.AddrPortFrom(vip4, clusterPort))
		if _, err := conn.Write(fmt.Append(nil, "retired ", i)); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	await(t, "packets with the retired key are dropped", func() bool {
		var dropped uint64
		for _, node := range n.nodes {
			dropped += counters(t, node).Drops["tunnel_tag"]
		}
		return dropped > 0
	})
}
