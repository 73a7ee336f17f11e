// SPDX-License-Identifier: Apache-2.0

package keyring

import (
	"testing"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func state(phase tunnelkey.Phase, sending uint32, required bool, keys ...tunnelkey.Key) *tunnelkey.State {
	return &tunnelkey.State{Phase: phase, Sending: sending, Required: required, Accepted: keys}
}

func TestNumber(t *testing.T) {
	for generation, want := range map[uint32]uint8{0: 0, 1: 1, 4: 4, 5: 1, 8: 4, 4294967295: 3} {
		if got := Number(generation); got != want {
			t.Errorf("Number(%d) = %d, want %d", generation, got, want)
		}
	}
}

func sameRing(t *testing.T, what string, got, want tunnelkey.Ring) {
	t.Helper()
	if !got.Equal(want) {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// A node rotates three keys and restarts at each step.
func TestChanges(t *testing.T) {
	one, two, three := tunnelkey.New(5), tunnelkey.New(6), tunnelkey.New(7)
	held := NodeKeys{}
	ring := func(sending uint32, required bool, accepted ...uint32) tunnelkey.Ring {
		return tunnelkey.Ring{Sending: sending, Required: required, Accepted: accepted}
	}
	for _, step := range []struct {
		name  string
		state *tunnelkey.State
		want  tunnelkey.Ring
	}{
		{"first", state(tunnelkey.Publishing, 0, false, one), ring(0, false, 5)},
		{"sent", state(tunnelkey.Switching, 5, false, one), ring(5, false, 5)},
		{"steady", state(tunnelkey.Steady, 5, false, one), ring(5, false, 5)},
		{"required", state(tunnelkey.Steady, 5, true, one), ring(5, true, 5)},
		{"second", state(tunnelkey.Publishing, 5, true, one, two), ring(5, true, 5, 6)},
		{"second sent", state(tunnelkey.Switching, 6, true, one, two), ring(6, true, 5, 6)},
		{"third generation after a loss", state(tunnelkey.Publishing, 0, true, three), ring(6, true, 5, 6, 7)},
		{"third sent", state(tunnelkey.Switching, 7, true, three), ring(7, true, 5, 6, 7)},
		{"third steady", state(tunnelkey.Steady, 7, true, three), ring(7, true, 7)},
	} {
		before := held.Ring.Accepted
		held = held.Adopt(step.state)
		sameRing(t, step.name, held.Ring, step.want)
		keys := held.Keys()
		if err := keys.Check(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
		if again := held.Adopt(step.state); !again.Equal(held) {
			t.Errorf("%s: adopting the saved ring again returns %+v", step.name, again.Ring)
		}
		// Restarts with and without the Secret.
		for _, known := range []*tunnelkey.State{step.state, nil} {
			restored := Restore(keys, known, append([]uint32{5, 6, 7}, before...))
			if !restored.Equal(held) {
				t.Errorf("%s: restored from %v: %+v, want %+v", step.name, known, restored.Ring, held.Ring)
			}
		}
	}
	if got, want := held.Keys().Accepted[0].Secret, tunnelkey.Derive(three.Secret, tunnelkey.LabelTag); got != want {
		t.Error("the data plane key is not the derived key")
	}
	if held.Keys().Accepted[0].Secret == three.Secret {
		t.Error("the data plane uses the secret instead of a derived key")
	}
}

// Without Secret and report, generations are the first with their numbers.
func TestRestoreUnknown(t *testing.T) {
	left := forwarding.TunnelKeys{
		Accepted: []forwarding.TunnelKey{{Number: 3, Secret: tunnelkey.New(1).Secret}, {Number: 4, Secret: tunnelkey.New(2).Secret}},
		Sending:  4, Required: true,
	}
	held := Restore(left, nil, nil)
	sameRing(t, "restored", held.Ring, tunnelkey.Ring{Accepted: []uint32{3, 4}, Sending: 4, Required: true})
	// Another key replaces one with the same number.
	next := held.Adopt(state(tunnelkey.Publishing, 0, true, tunnelkey.New(8)))
	sameRing(t, "adopted", next.Ring, tunnelkey.Ring{Accepted: []uint32{3, 8}, Sending: 8, Required: true})
	if err := next.Keys().Check(); err != nil {
		t.Error(err)
	}
}

func TestNothingRestored(t *testing.T) {
	held := Restore(forwarding.TunnelKeys{}, nil, nil)
	sameRing(t, "restored", held.Ring, tunnelkey.Ring{})
	if err := held.Keys().Check(); err != nil {
		t.Error(err)
	}
}
