// SPDX-License-Identifier: Apache-2.0

// Package keeper brings the keys of the Secret into the data plane, and reports how that stands.
package keeper

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

// Plane is what has the keys of the tunnel.
type Plane interface {
	SetTunnelKeys(keys forwarding.TunnelKeys) error
	TunnelKeys() forwarding.TunnelKeys
}

// Keeper brings the keys of the Secret into the data plane. Without a Secret that can be read, the
// data plane keeps those that it has. A nil one sets none.
type Keeper struct {
	plane Plane
	// report is the node's own, by which generations are known after a restart.
	report func() *millracev1beta1.LBNodeReport
	// previous are the generations of the agent before, which count where there is no report.
	previous func() []uint32
	logger   logr.Logger
	// seed is that by which the data plane hashes flows.
	seed flowhash.Seed

	// held is nil until the data plane has been asked.
	held *keyring.Held
	// toldSeed is what was last said of the Secret's seed.
	toldSeed string
}

// New returns a keeper of the keys of a data plane, which hashes flows by a seed. report returns
// the node's own report, by which generations are known after a restart. Where there is none,
// previous returns those of the agent before.
func New(
	plane Plane, seed flowhash.Seed, report func() *millracev1beta1.LBNodeReport, previous func() []uint32, logger logr.Logger,
) *Keeper {
	return &Keeper{plane: plane, report: report, previous: previous, seed: seed, logger: logger}
}

// Keys are those that the data plane has.
func (k *Keeper) Keys() forwarding.TunnelKeys {
	if k == nil {
		return forwarding.TunnelKeys{}
	}
	return k.plane.TunnelKeys()
}

// Ring are the keys by which the node works, as of the last Update.
func (k *Keeper) Ring() tunnelkey.Ring {
	if k == nil || k.held == nil {
		return tunnelkey.Ring{}
	}
	return k.held.Ring
}

// Update does what a Secret asks for, and says how that stands.
func (k *Keeper) Update(secret model.TunnelSecret) (*status.TunnelKey, error) {
	if k == nil {
		return nil, nil
	}
	if k.held == nil {
		held := keyring.Restore(k.plane.TunnelKeys(), secret.State, k.reported())
		k.held = &held
	}
	observed := &status.TunnelKey{}
	defer func() { observed.Ring = k.held.Ring }()
	name := fmt.Sprintf("Secret %s/%s", tunnelkey.Namespace, tunnelkey.SecretName)
	switch {
	case secret.Err != nil:
		observed.Reason = millracev1beta1.ReasonKeyInvalid
		observed.Message = fmt.Sprintf("%s: %v; %s", name, secret.Err, k.kept())
		return observed, nil
	case secret.State == nil:
		observed.Reason = millracev1beta1.ReasonKeyAbsent
		observed.Message = fmt.Sprintf("there is no %s, which the operator makes; %s", name, k.kept())
		return observed, nil
	}
	observed.OtherSeed = k.otherSeed(name, secret.State.Seed)
	next := k.held.Adopt(secret.State)
	if !next.Equal(*k.held) {
		if err := k.plane.SetTunnelKeys(next.Keys()); err != nil {
			observed.Reason, observed.Message = millracev1beta1.ReasonKeyFailed, err.Error()
			return observed, err
		}
		k.held = &next
		k.logger.Info("Keys of the tunnel changed", "accepted", next.Ring.Accepted, "sending", next.Ring.Sending, "required", next.Ring.Required)
	}
	return observed, nil
}

// otherSeed says that the Secret has another seed than the node. Running programs keep theirs: new
// ones would forget the connections, which only somebody who asked for it accepts.
func (k *Keeper) otherSeed(name string, seed flowhash.Seed) string {
	said := ""
	if seed != k.seed {
		said = fmt.Sprintf("%s has %v of the flow hash, the node has %v: connections break that move between nodes which differ; "+
			"put the previous seed back, or restart all agents", name, seed, k.seed)
	}
	if said != k.toldSeed {
		k.toldSeed = said
		k.logger.Info("The seed of the flow hash was compared", "differs", said != "", "secret", seed, "node", k.seed)
	}
	return said
}

// kept says what the node does without a Secret.
func (k *Keeper) kept() string {
	if k.held.Ring.Sending == 0 {
		return "packets between nodes go without a tag, and the other fences stand"
	}
	return fmt.Sprintf("the node goes on with key %d", k.held.Ring.Sending)
}

func (k *Keeper) reported() []uint32 {
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
