// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"fmt"
	"slices"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/api/tunnelkey"
	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/keyring"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
)

// keyPlane is what has the keys of the tunnel.
type keyPlane interface {
	SetTunnelKeys(keys forwarding.TunnelKeys) error
	TunnelKeys() forwarding.TunnelKeys
}

// tunnel brings the keys of the Secret into the data plane. Without a Secret that can be read,
// the data plane keeps those that it has.
type tunnel struct {
	plane keyPlane
	// report is the node's own, by which generations are known after a restart.
	report func() *millracev1alpha1.LBNodeReport
	// former are the generations of the agent before, which count where there is no report.
	former func() []uint32
	logger logr.Logger
	// seed is that by which the data plane hashes flows.
	seed flowhash.Seed

	// held is nil until the data plane has been asked.
	held *keyring.Held
	// toldSeed is what was last said of the Secret's seed.
	toldSeed string
}

// update does what a Secret asks for, and says how that stands.
func (t *tunnel) update(secret model.TunnelSecret) (*status.TunnelKey, error) {
	if t.held == nil {
		held := keyring.Restore(t.plane.TunnelKeys(), secret.State, t.reported())
		t.held = &held
	}
	observed := &status.TunnelKey{}
	defer func() { observed.Ring = t.held.Ring }()
	name := fmt.Sprintf("Secret %s/%s", tunnelkey.Namespace, tunnelkey.SecretName)
	switch {
	case secret.Err != nil:
		observed.Reason = millracev1alpha1.ReasonKeyInvalid
		observed.Message = fmt.Sprintf("%s: %v; %s", name, secret.Err, t.kept())
		return observed, nil
	case secret.State == nil:
		observed.Reason = millracev1alpha1.ReasonKeyAbsent
		observed.Message = fmt.Sprintf("there is no %s, which the operator makes; %s", name, t.kept())
		return observed, nil
	}
	observed.OtherSeed = t.otherSeed(name, secret.State.Seed)
	next := t.held.Adopt(secret.State)
	if !next.Equal(*t.held) {
		if err := t.plane.SetTunnelKeys(next.Keys()); err != nil {
			observed.Reason, observed.Message = millracev1alpha1.ReasonKeyFailed, err.Error()
			return observed, err
		}
		t.held = &next
		t.logger.Info("Keys of the tunnel changed", "accepted", next.Ring.Accepted, "sending", next.Ring.Sending, "required", next.Ring.Required)
	}
	return observed, nil
}

// otherSeed says that the Secret has another seed than the node. Running programs keep theirs: new
// ones would forget the connections, which only somebody who asked for it accepts.
func (t *tunnel) otherSeed(name string, seed flowhash.Seed) string {
	said := ""
	if seed != t.seed {
		said = fmt.Sprintf("%s has %v of the flow hash, the node has %v: connections break that move between nodes which differ; "+
			"put the former seed back, or restart all agents", name, seed, t.seed)
	}
	if said != t.toldSeed {
		t.toldSeed = said
		t.logger.Info("The seed of the flow hash was compared", "differs", said != "", "secret", seed, "node", t.seed)
	}
	return said
}

// kept says what the node does without a Secret.
func (t *tunnel) kept() string {
	if t.held.Ring.Sending == 0 {
		return "packets between nodes go without a tag, and the other fences stand"
	}
	return fmt.Sprintf("the node goes on with key %d", t.held.Ring.Sending)
}

func (t *tunnel) reported() []uint32 {
	report := t.report()
	if report == nil || report.Status.TunnelKeys == nil {
		if t.former != nil {
			return t.former()
		}
		return nil
	}
	var generations []uint32
	for _, generation := range slices.Concat([]int64{report.Status.TunnelKeys.Sending}, report.Status.TunnelKeys.Accepted) {
		if generation > 0 {
			generations = append(generations, uint32(generation))
		}
	}
	return generations
}
