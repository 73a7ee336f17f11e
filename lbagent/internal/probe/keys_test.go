// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"slices"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// During a rotation nodes at most one step apart accept each other's probes.
func TestKeysOverlapDuringRotation(t *testing.T) {
	key := func(number uint8) forwarding.TunnelKey {
		return forwarding.TunnelKey{Number: number, Secret: [forwarding.TunnelSecretSize]byte{number}}
	}
	one, two := key(1), key(2)
	steps := []forwarding.TunnelKeys{
		{},
		{Accepted: []forwarding.TunnelKey{one}},
		{Accepted: []forwarding.TunnelKey{one}, Sending: 1},
		{Accepted: []forwarding.TunnelKey{one}, Sending: 1, Required: true},
		{Accepted: []forwarding.TunnelKey{one, two}, Sending: 1, Required: true},
		{Accepted: []forwarding.TunnelKey{one, two}, Sending: 2, Required: true},
		{Accepted: []forwarding.TunnelKey{two}, Sending: 2, Required: true},
	}
	for i := range steps[1:] {
		before, after := Keys(steps[i]), Keys(steps[i+1])
		if !slices.Contains(before, after[0]) || !slices.Contains(after, before[0]) {
			t.Errorf("steps %d and %d: keys %v and %v", i, i+1, before, after)
		}
	}
	last := Keys(steps[len(steps)-1])
	if slices.Contains(last, Key{}) || slices.Contains(last, Keys(steps[3])[0]) || len(last) != 1 {
		t.Errorf("finally accepted keys = %v", last)
	}
	if most := slices.MaxFunc(steps, func(a, b forwarding.TunnelKeys) int { return len(Keys(a)) - len(Keys(b)) }); len(Keys(most)) > 4 {
		t.Errorf("%d keys at the same time, want at most 4", len(Keys(most)))
	}
	if derived := Keys(steps[3])[0]; string(derived[:]) == string(one.Secret[:KeySize]) {
		t.Error("the probe key equals the tunnel key")
	}
}
