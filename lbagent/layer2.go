// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/go-logr/logr"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/l2"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// Bounds of LBNode.status.l2, as in the schema.
const (
	maxReachAdvertisements = 32
	maxReachNetworks       = 32
)

// responder answers for VIPs on links.
type responder interface {
	Set(wanted map[string][]netip.Addr, again bool)
	Problems() []string
	Counts() map[string]l2.Counts
	Run(ctx context.Context) error
}

// layer2 has this node answer on its links for the VIPs that it is chosen for. A nil one never does.
type layer2 struct {
	responder responder
	logger    logr.Logger

	// links are those of the present pass.
	links map[string][]announce.Link
	// answering are the VIPs that the last pass answered for, with their interfaces.
	answering map[netip.Addr][]string
	// up are the nodes that could answer in the last pass.
	up map[forwarding.NodeID]bool
	// elsewhere are the VIPs that other nodes answer for, as the last pass saw it.
	elsewhere map[netip.Addr]bool
	// beat is nil where nothing says that the node works.
	beat *beat
}

// beat says to other nodes that this one answers for its VIPs.
type beat struct {
	say, alive func() error
	// others is true while other nodes could answer.
	others atomic.Bool
}

func newBeat(say, alive func() error) *beat { return &beat{say: say, alive: alive} }

// do says nothing where the agent is not alive, so that others answer. Where nobody else could, the node
// answers however it is.
func (b *beat) do() error {
	if err := b.alive(); err != nil && b.others.Load() {
		return err
	}
	return b.say()
}

// see notes whether other nodes could answer.
func (b *beat) see(others bool) {
	if b != nil {
		b.others.Store(others)
	}
}

// newLayer2 says by a beat that the node works.
func newLayer2(beat *beat, logger logr.Logger) *layer2 {
	return &layer2{responder: l2.New(beat.do, logger), beat: beat, logger: logger}
}

// look gives a decision what it needs to know of links and nodes.
func (l *layer2) look(m *model.Model, objects *model.Snapshot, attachments []dataplane.Attachment, node *announce.Node) {
	if l == nil {
		return
	}
	if l.links = nil; len(m.L2) == 0 {
		return
	}
	var attached []string
	for _, attachment := range attachments {
		if attachment.Err == nil && attachment.Mode != "" {
			attached = append(attached, attachment.Interface)
		}
	}
	l.links = announce.Reach(m, objects.OnLink, attached)
	node.Links = l.links
}

// answer has the responder answer as decided. Where a node is gone that could have answered before, all
// hosts are told of all VIPs again: some may have sent to that node still.
func (l *layer2) answer(m *model.Model, decisions []announce.Decision, silent map[forwarding.NodeID]bool) {
	if l == nil || len(m.L2) == 0 && len(l.answering) == 0 {
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
	l.beat.see(len(up) > 1 || len(up) == 1 && !up[m.Self.ID])
	lost := false
	for id := range l.up {
		lost = lost || !up[id]
	}
	l.tell(answering)
	l.answering, l.elsewhere, l.up = answering, elsewhere, up
	l.responder.Set(wanted, lost)
}

// couldAnswer are the nodes that could answer for VIPs on a link.
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

// tell logs the VIPs that this node begins or ceases to answer for: single ones, or how many.
func (l *layer2) tell(answering map[netip.Addr][]string) {
	var begun, ceased []string
	for vip, interfaces := range answering {
		if !slices.Equal(l.answering[vip], interfaces) {
			begun = append(begun, vip.String())
		}
	}
	for vip := range l.answering {
		if answering[vip] == nil {
			ceased = append(ceased, vip.String())
		}
	}
	if len(begun)+len(ceased) == 0 {
		return
	}
	slices.Sort(begun)
	slices.Sort(ceased)
	l.logger.Info("This node answers for other VIPs on its links", "all", len(answering), "begun", len(begun), "ceased", len(ceased),
		"first", append(begun[:min(len(begun), 5)], ceased[:min(len(ceased), 5)]...))
}

// reach is what the LBNode says of the links.
func (l *layer2) reach() (reach []millracev1alpha1.L2Reach) {
	if l == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(l.links)) {
		var networks []string
		for _, link := range l.links[name] {
			networks = append(networks, link.Prefix.String())
		}
		slices.Sort(networks)
		networks = slices.Compact(networks)
		reach = append(reach, millracev1alpha1.L2Reach{
			Advertisement: name, Networks: networks[:min(len(networks), maxReachNetworks)],
		})
	}
	return reach[:min(len(reach), maxReachAdvertisements)]
}

// problems are what keeps this node from answering.
func (l *layer2) problems() []string {
	if l == nil {
		return nil
	}
	return l.responder.Problems()
}

// answers are the VIPs that this node answers for, sorted.
func (l *layer2) answers() []netip.Addr {
	if l == nil {
		return nil
	}
	return slices.SortedFunc(maps.Keys(l.answering), netip.Addr.Compare)
}

// led are the VIPs that other nodes answer for.
func (l *layer2) led() map[netip.Addr]bool {
	if l == nil {
		return nil
	}
	return l.elsewhere
}
