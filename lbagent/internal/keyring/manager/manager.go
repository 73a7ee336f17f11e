// SPDX-License-Identifier: Apache-2.0

// Package manager applies the tunnel keys of the Secret to the data plane and reports their state.
package manager

import (
	"fmt"
	"slices"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/keyring"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
)

// Plane is the data plane's interface for tunnel keys.
type Plane interface {
	SetTunnelKeys(keys forwarding.TunnelKeys) error
	TunnelKeys() forwarding.TunnelKeys
}

// Manager applies the keys of the Secret. Without a readable Secret the data plane keeps its keys. A nil
// Manager does nothing.
type Manager struct {
	plane Plane
	// report returns this node's report, which has the generations after a restart.
	report func() *millracev1beta1.LBNodeReport
	// previous returns the generations in the checkpoint, used if there is no report.
	previous func() []uint32
	logger   logr.Logger
	seed     flowhash.Seed

	keys       *keyring.NodeKeys
	loggedSeed string
}

// New returns a Manager for a data plane with the given flow hash seed. After a restart, report returns this
// node's report with the key generations, and previous those of the checkpoint if there is none.
func New(
	plane Plane, seed flowhash.Seed, report func() *millracev1beta1.LBNodeReport, previous func() []uint32, logger logr.Logger,
) *Manager {
	return &Manager{plane: plane, report: report, previous: previous, seed: seed, logger: logger}
}

// Keys returns the data plane's keys.
func (k *Manager) Keys() forwarding.TunnelKeys {
	if k == nil {
		return forwarding.TunnelKeys{}
	}
	return k.plane.TunnelKeys()
}

// Ring returns the key generations in use after the last Update.
func (k *Manager) Ring() tunnelkey.Ring {
	if k == nil || k.keys == nil {
		return tunnelkey.Ring{}
	}
	return k.keys.Ring
}

// Update applies the Secret and returns the state of the keys.
func (k *Manager) Update(secret model.TunnelSecret) (*status.TunnelKey, error) {
	if k == nil {
		return nil, nil
	}
	if k.keys == nil {
		held := keyring.Restore(k.plane.TunnelKeys(), secret.State, k.reported())
		k.keys = &held
	}
	observed := &status.TunnelKey{}
	defer func() { observed.Ring = k.keys.Ring }()
	name := fmt.Sprintf("Secret %s/%s", tunnelkey.Namespace, tunnelkey.SecretName)
	switch {
	case secret.Err != nil:
		observed.Reason = millracev1beta1.ReasonKeyInvalid
		observed.Message = fmt.Sprintf("%s: %v; %s", name, secret.Err, k.withoutSecret())
		return observed, nil
	case secret.State == nil:
		observed.Reason = millracev1beta1.ReasonKeyMissing
		observed.Message = fmt.Sprintf("%s, which the operator creates, does not exist; %s", name, k.withoutSecret())
		return observed, nil
	}
	observed.OtherSeed = k.otherSeed(name, secret.State.Seed)
	next := k.keys.Adopt(secret.State)
	if !next.Equal(*k.keys) {
		if err := k.plane.SetTunnelKeys(next.Keys()); err != nil {
			observed.Reason, observed.Message = millracev1beta1.ReasonKeyProgrammingFailed, err.Error()
			return observed, err
		}
		k.keys = &next
		k.logger.Info("Tunnel keys changed", "accepted", next.Ring.Accepted, "sending", next.Ring.Sending, "required", next.Ring.Required)
	}
	return observed, nil
}

// otherSeed returns a message if the Secret's seed differs from the node's. Running programs keep their
// seed, because a new one would break established connections.
func (k *Manager) otherSeed(name string, seed flowhash.Seed) string {
	said := ""
	if seed != k.seed {
		said = fmt.Sprintf("%s has %v of the flow hash, the node has %v: connections break that move between nodes which differ; "+
			"put the previous seed back, or restart all agents", name, seed, k.seed)
	}
	if said != k.loggedSeed {
		k.loggedSeed = said
		k.logger.Info("The seed of the flow hash was compared", "differs", said != "", "secret", seed, "node", k.seed)
	}
	return said
}

// withoutSecret describes the node's behaviour without a Secret.
func (k *Manager) withoutSecret() string {
	if k.keys.Ring.Sending == 0 {
		return "packets between nodes have no tag; all other checks apply"
	}
	return fmt.Sprintf("the node keeps using key %d", k.keys.Ring.Sending)
}

func (k *Manager) reported() []uint32 {
	report := k.report()
	if report == nil || report.Status.TunnelKeys == nil {
		return k.previous()
	}
	var generations []uint32
	for _, generation := range slices.Concat([]int64{report.Status.TunnelKeys.Sending}, report.Status.TunnelKeys.Accepted) {
		if generation > 0 {
			generations = append(generations, uint32(generation))
		}
	}
	return generations
}
