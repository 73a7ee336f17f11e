// SPDX-License-Identifier: Apache-2.0

package l2

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/go-logr/logr"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Bounds of LBNode.status.l2 in the schema.
const (
	maxReachAdvertisements = 32
	maxReachNetworks       = 32
)

// Controller applies the L2 decisions of passes to the Responder. A nil Controller does nothing.
type Controller struct {
	responder *Responder
	logger    logr.Logger

	links     map[string][]announce.Link
	answering map[netip.Addr][]string
	up        map[forwarding.NodeID]bool
	elsewhere map[netip.Addr]bool
	heartbeat *Heartbeat
}

// NewController returns a Controller that sends heartbeats while it answers. After the process was stopped
// (SIGSTOP, a frozen VM) it waits for confirm, which returns after a pass with current objects. claimed, unless
// nil, is called concurrently.
func NewController(
	heartbeat *Heartbeat, confirm func(ctx context.Context), claimed ClaimFunc, logger logr.Logger,
) *Controller {
	responder := New(heartbeat.Send, logger)
	responder.confirm, responder.claimed = confirm, claimed
	return &Controller{responder: responder, heartbeat: heartbeat, logger: logger}
}

// Run answers until ctx is done.
func (a *Controller) Run(ctx context.Context) error { return a.responder.Run(ctx) }

// Counts returns the counters of each interface.
func (a *Controller) Counts() map[string]Counts { return a.responder.Counts() }

// AddLinks adds this node's links to the input of a decision. attached are the interfaces with BPF programs.
func (a *Controller) AddLinks(m *model.Model, objects *model.Snapshot, attached []string, node *announce.Node) {
	if a == nil {
		return
	}
	if a.links = nil; len(m.L2) == 0 {
		return
	}
	a.links = announce.Reach(m, objects.OnLink, attached)
	node.Links = a.links
}

// Apply applies decisions to the Responder. After the loss of a node that may have answered, all VIPs are
// announced on the links again.
func (a *Controller) Apply(m *model.Model, decisions []announce.Decision, silent map[forwarding.NodeID]bool) {
	if a == nil {
		return
	}
	wanted := map[string][]netip.Addr{}
	answering := map[netip.Addr][]string{}
	elsewhere := map[netip.Addr]bool{}
	for i := range decisions {
		decision := &decisions[i]
		for _, name := range decision.Interfaces {
			wanted[name] = append(wanted[name], decision.VIP)
		}
		if len(decision.Interfaces) > 0 {
			answering[decision.VIP] = decision.Interfaces
		}
		if decision.Elsewhere {
			elsewhere[decision.VIP] = true
		}
	}
	up := couldAnswer(m, silent)
	a.heartbeat.SetOthers(len(up) > 1 || len(up) == 1 && !up[m.Self.ID])
	lost := false
	for id := range a.up {
		lost = lost || !up[id]
	}
	a.logChanges(answering)
	a.answering, a.elsewhere, a.up = answering, elsewhere, up
	a.responder.Set(wanted, lost)
}

func couldAnswer(m *model.Model, silent map[forwarding.NodeID]bool) map[forwarding.NodeID]bool {
	up := map[forwarding.NodeID]bool{}
	for i := range m.Nodes {
		node := &m.Nodes[i]
		if len(m.Reach[node.ID]) > 0 && !node.Booting && !node.Down && !silent[node.ID] {
			up[node.ID] = true
		}
	}
	return up
}

func (a *Controller) logChanges(answering map[netip.Addr][]string) {
	var begun, ceased []string
	for vip, interfaces := range answering {
		if !slices.Equal(a.answering[vip], interfaces) {
			begun = append(begun, vip.String())
		}
	}
	for vip := range a.answering {
		if answering[vip] == nil {
			ceased = append(ceased, vip.String())
		}
	}
	if len(begun)+len(ceased) == 0 {
		return
	}
	slices.Sort(begun)
	slices.Sort(ceased)
	a.logger.Info("This node answers for other VIPs on its links", "all", len(answering), "begun", len(begun), "ceased", len(ceased),
		"first", append(begun[:min(len(begun), 5)], ceased[:min(len(ceased), 5)]...))
}

// Reach returns the networks for LBNode.status.l2.
func (a *Controller) Reach() (reach []millracev1beta1.L2Reach) {
	if a == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(a.links)) {
		var networks []string
		for _, link := range a.links[name] {
			networks = append(networks, link.Prefix.String())
		}
		slices.Sort(networks)
		networks = slices.Compact(networks)
		reach = append(reach, millracev1beta1.L2Reach{
			Advertisement: name, Networks: networks[:min(len(networks), maxReachNetworks)],
		})
	}
	return reach[:min(len(reach), maxReachAdvertisements)]
}

// Problems returns the interfaces that cannot be used and the errors.
func (a *Controller) Problems() []string {
	if a == nil {
		return nil
	}
	return a.responder.Problems()
}

// Answers returns the VIPs that this node answers for, sorted.
func (a *Controller) Answers() []netip.Addr {
	if a == nil {
		return nil
	}
	return slices.SortedFunc(maps.Keys(a.answering), netip.Addr.Compare)
}

// OtherNodeSelected returns the VIPs that other nodes answer for.
func (a *Controller) OtherNodeSelected() map[netip.Addr]bool {
	if a == nil {
		return nil
	}
	return a.elsewhere
}
