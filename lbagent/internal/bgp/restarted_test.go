// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"bytes"
	"testing"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
)

func restartOpen(t *testing.T, restart bool) []byte {
	t.Helper()
	families := []*bgp.CapGracefulRestartTuple{
		bgp.NewCapGracefulRestartTuple(bgp.RF_IPv4_UC, true), bgp.NewCapGracefulRestartTuple(bgp.RF_IPv6_UC, true),
	}
	message, err := bgp.NewBGPOpenMessage(bgp.AS_TRANS, 90, "198.51.100.1", []bgp.OptionParameterInterface{
		bgp.NewOptionParameterCapability([]bgp.ParameterCapabilityInterface{bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC)}),
		bgp.NewOptionParameterCapability([]bgp.ParameterCapabilityInterface{
			bgp.NewCapFourOctetASNumber(4200000001), bgp.NewCapGracefulRestart(restart, false, 120, families),
		}),
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return message
}

// The bit goes, and nothing else; what the message was made from is not touched.
func TestWithoutRestart(t *testing.T) {
	with, without := restartOpen(t, true), restartOpen(t, false)
	given := bytes.Clone(with)
	if got := withoutRestart(given); !bytes.Equal(got, without) {
		t.Errorf("%x, want %x", got, without)
	}
	if !bytes.Equal(given, with) {
		t.Error("the message itself was changed")
	}
	for _, same := range [][]byte{without, openMessage(t, 64512)} {
		if got := withoutRestart(same); !bytes.Equal(got, same) {
			t.Errorf("%x, want %x", got, same)
		}
	}
	for length := headerLength; length < len(with); length++ {
		if got := withoutRestart(with[:length]); len(got) != length {
			t.Errorf("of %d octets %d are left", length, len(got))
		}
	}
}
