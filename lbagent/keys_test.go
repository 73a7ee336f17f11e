// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"errors"
	"testing"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/keyring/manager"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

type keyMaps struct {
	keys forwarding.TunnelKeys
	err  error
}

func (k *keyMaps) SetTunnelKeys(keys forwarding.TunnelKeys) error {
	if k.err != nil {
		return k.err
	}
	k.keys = keys
	return nil
}

func (k *keyMaps) TunnelKeys() forwarding.TunnelKeys { return k.keys }

// A pass sets the keys before it programs entries, and a node without keys does not serve.
func TestKeysBeforeFrontends(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 2, 2)
	objects.TunnelKey = model.TunnelSecret{State: &tunnelkey.State{
		Phase: tunnelkey.Steady, Accepted: []tunnelkey.Key{tunnelkey.New(1)}, Sending: 1, Required: true,
	}}
	maps := &keyMaps{err: errInjected}
	l := newLoop(n, objects)
	l.keys = manager.New(maps, flowhash.Seed{}, func() *millracev1beta1.LBNodeReport { return nil }, func() []uint32 { return nil }, logr.Discard())
	if _, err := l.pass(start); !errors.Is(err, errInjected) {
		t.Errorf("a pass that failed to set the keys returned %v", err)
	}
	if n.observation.Forwards || n.observation.TunnelKey.Reason != millracev1beta1.ReasonKeyProgrammingFailed {
		t.Errorf("observation = %+v", n.observation)
	}
	maps.err = nil
	mustPass(t, l, start)
	if !n.observation.Forwards || n.observation.TunnelKey.Reason != "" || maps.keys.Sending != 1 {
		t.Errorf("observation = %+v, keys in the maps %v", n.observation, maps.keys)
	}
}
