// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

var errInjected = errors.New("injected")

// keyMaps are the tunnel keys of a data plane, which survive agents.
type keyMaps struct {
	keys   forwarding.TunnelKeys
	writes int
	err    error
}

func (k *keyMaps) SetTunnelKeys(keys forwarding.TunnelKeys) error {
	if k.err != nil {
		return k.err
	}
	k.keys = keys
	k.writes++
	return keys.Check()
}

func (k *keyMaps) TunnelKeys() forwarding.TunnelKeys { return k.keys }

func newKeeper(maps *keyMaps, reported ...int64) *Manager {
	report := func() *millracev1beta1.LBNodeReport {
		report := &millracev1beta1.LBNodeReport{}
		report.Status.TunnelKeys = &millracev1beta1.TunnelKeysStatus{Accepted: reported}
		return report
	}
	return New(maps, flowhash.Seed{}, report, func() []uint32 { return nil }, logr.Discard())
}

func secretOf(phase tunnelkey.Phase, sending uint32, keys ...tunnelkey.Key) model.TunnelSecret {
	return model.TunnelSecret{State: &tunnelkey.State{Phase: phase, Accepted: keys, Sending: sending, Required: true}}
}

func expect(t *testing.T, keeper *Manager, secret model.TunnelSecret, want tunnelkey.Ring, reason, message string) {
	t.Helper()
	observed, err := keeper.Update(secret)
	if (err != nil) != (reason == millracev1beta1.ReasonKeyProgrammingFailed) {
		t.Errorf("error %v", err)
	}
	if !observed.Ring.Equal(want) || observed.Reason != reason || !strings.Contains(observed.Message, message) {
		t.Errorf("observed %+v, want ring %+v, reason %s, message %q", observed, want, reason, message)
	}
}

func TestManager(t *testing.T) {
	maps := &keyMaps{}
	keeper := newKeeper(maps)
	one, two := tunnelkey.New(1), tunnelkey.New(2)
	expect(t, keeper, model.TunnelSecret{}, tunnelkey.Ring{}, millracev1beta1.ReasonKeyMissing, "all other checks apply")
	ring := tunnelkey.Ring{Accepted: []uint32{1}, Sending: 1, Required: true}
	expect(t, keeper, secretOf(tunnelkey.Steady, 1, one), ring, "", "")
	expect(t, keeper, secretOf(tunnelkey.Steady, 1, one), ring, "", "")
	if maps.writes != 1 || maps.keys.Sending != 1 {
		t.Errorf("after %d writes the maps contain %v", maps.writes, maps.keys)
	}
	// A deleted or invalid Secret does not change the keys.
	expect(t, keeper, model.TunnelSecret{}, ring, millracev1beta1.ReasonKeyMissing, "keeps using key 1")
	expect(t, keeper, model.TunnelSecret{Err: errors.New("nonsense")}, ring, millracev1beta1.ReasonKeyInvalid, "nonsense; the node keeps using key 1")
	if maps.writes != 1 {
		t.Error("the maps were written without a Secret")
	}
	maps.err = errInjected
	expect(t, keeper, secretOf(tunnelkey.Switching, 2, one, two), ring, millracev1beta1.ReasonKeyProgrammingFailed, "injected")
	maps.err = nil
	ring = tunnelkey.Ring{Accepted: []uint32{1, 2}, Sending: 2, Required: true}
	expect(t, keeper, secretOf(tunnelkey.Switching, 2, one, two), ring, "", "")

	// Restarts with and without the Secret.
	expect(t, newKeeper(maps, 2, 1), model.TunnelSecret{}, ring, millracev1beta1.ReasonKeyMissing, "keeps using key 2")
	expect(t, newKeeper(maps), secretOf(tunnelkey.Switching, 2, one, two), ring, "", "")
	if maps.writes != 2 {
		t.Errorf("%d writes, want 2: the restart wrote the maps", maps.writes)
	}
	// With another Secret the previous key is used until all nodes have the new one.
	ring = tunnelkey.Ring{Accepted: []uint32{1, 2, 3}, Sending: 2, Required: true}
	expect(t, newKeeper(maps, 2, 1), secretOf(tunnelkey.Publishing, 0, tunnelkey.New(3)), ring, "", "")
}

// Another seed in the Secret is reported but not applied.
func TestOtherSeed(t *testing.T) {
	maps := &keyMaps{}
	keeper := newKeeper(maps)
	keeper.seed = flowhash.Seed{1}
	key := tunnelkey.New(1)
	for _, test := range []struct {
		name    string
		secret  model.TunnelSecret
		differs bool
	}{
		{"the same", seeded(flowhash.Seed{1}, key), false},
		{"another", seeded(flowhash.Seed{2}, key), true},
		{"none", seeded(flowhash.Seed{}, key), true},
		{"missing Secret", model.TunnelSecret{}, false},
		{"not read", model.TunnelSecret{Err: errInjected}, false},
		{"the same again", seeded(flowhash.Seed{1}, key), false},
	} {
		observed, err := keeper.Update(test.secret)
		if err != nil || (observed.OtherSeed != "") != test.differs {
			t.Errorf("%s: observed %+v, error %v; want a different seed: %t", test.name, observed, err, test.differs)
		}
	}
}

func seeded(seed flowhash.Seed, key tunnelkey.Key) model.TunnelSecret {
	secret := secretOf(tunnelkey.Steady, 1, key)
	secret.State.Seed = seed
	return secret
}
