// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// keyMaps have the keys of the tunnel, and outlive an agent.
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

func newTunnel(maps *keyMaps, reported ...int64) *tunnel {
	return &tunnel{plane: maps, logger: logr.Discard(), report: func() *millracev1alpha1.LBNodeReport {
		report := &millracev1alpha1.LBNodeReport{}
		report.Status.TunnelKeys = &millracev1alpha1.TunnelKeysStatus{Accepted: reported}
		return report
	}}
}

func secretOf(phase tunnelkey.Phase, sending uint32, keys ...tunnelkey.Key) model.TunnelSecret {
	return model.TunnelSecret{State: &tunnelkey.State{Phase: phase, Accepted: keys, Sending: sending, Required: true}}
}

// expect updates a tunnel and compares what it says.
func expect(t *testing.T, tunnel *tunnel, secret model.TunnelSecret, want tunnelkey.Ring, reason, message string) {
	t.Helper()
	observed, err := tunnel.update(secret)
	if (err != nil) != (reason == millracev1alpha1.ReasonKeyFailed) {
		t.Errorf("error %v", err)
	}
	if !observed.Ring.Equal(want) || observed.Reason != reason || !strings.Contains(observed.Message, message) {
		t.Errorf("observed %+v, want %+v %s %q", observed, want, reason, message)
	}
}

func TestTunnel(t *testing.T) {
	maps := &keyMaps{}
	tunnel := newTunnel(maps)
	one, two := tunnelkey.New(1), tunnelkey.New(2)
	expect(t, tunnel, model.TunnelSecret{}, tunnelkey.Ring{}, millracev1alpha1.ReasonKeyAbsent, "the other fences stand")
	ring := tunnelkey.Ring{Accepted: []uint32{1}, Sending: 1, Required: true}
	expect(t, tunnel, secretOf(tunnelkey.Steady, 1, one), ring, "", "")
	expect(t, tunnel, secretOf(tunnelkey.Steady, 1, one), ring, "", "")
	if maps.writes != 1 || maps.keys.Sending != 1 {
		t.Errorf("after %d writes the maps have %v", maps.writes, maps.keys)
	}
	// Deleted or garbled: nothing changes.
	expect(t, tunnel, model.TunnelSecret{}, ring, millracev1alpha1.ReasonKeyAbsent, "goes on with key 1")
	expect(t, tunnel, model.TunnelSecret{Err: errors.New("nonsense")}, ring, millracev1alpha1.ReasonKeyInvalid, "nonsense; the node goes on with key 1")
	if maps.writes != 1 {
		t.Error("the maps were written without a Secret")
	}
	// The maps cannot be written: it is tried again.
	maps.err = errInjected
	expect(t, tunnel, secretOf(tunnelkey.Switching, 2, one, two), ring, millracev1alpha1.ReasonKeyFailed, "injected")
	maps.err = nil
	ring = tunnelkey.Ring{Accepted: []uint32{1, 2}, Sending: 2, Required: true}
	expect(t, tunnel, secretOf(tunnelkey.Switching, 2, one, two), ring, "", "")

	// A restart while the Secret is away, or there.
	expect(t, newTunnel(maps, 2, 1), model.TunnelSecret{}, ring, millracev1alpha1.ReasonKeyAbsent, "goes on with key 2")
	expect(t, newTunnel(maps), secretOf(tunnelkey.Switching, 2, one, two), ring, "", "")
	if maps.writes != 2 {
		t.Errorf("%d writes, want 2: a restart wrote", maps.writes)
	}
	// Another Secret: the former key goes on until all nodes have the new one.
	ring = tunnelkey.Ring{Accepted: []uint32{1, 2, 3}, Sending: 2, Required: true}
	expect(t, newTunnel(maps, 2, 1), secretOf(tunnelkey.Publishing, 0, tunnelkey.New(3)), ring, "", "")
}

// A pass sets the keys before it programs anything, and a node without them does not serve.
func TestKeysBeforeFrontends(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 2, 2)
	objects.TunnelKey = secretOf(tunnelkey.Steady, 1, tunnelkey.New(1))
	maps := &keyMaps{err: errInjected}
	l := newLoop(n, objects)
	l.tunnel = newTunnel(maps)
	if _, err := l.pass(start); !errors.Is(err, errInjected) {
		t.Errorf("a pass that could not set the keys returned %v", err)
	}
	if n.observation.Forwards || n.observation.TunnelKey.Reason != millracev1alpha1.ReasonKeyFailed {
		t.Errorf("observed %+v", n.observation)
	}
	maps.err = nil
	mustPass(t, l, start)
	if !n.observation.Forwards || n.observation.TunnelKey.Reason != "" || maps.keys.Sending != 1 {
		t.Errorf("observed %+v, the maps have %v", n.observation, maps.keys)
	}
}
