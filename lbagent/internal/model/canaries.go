// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/delta"
)

// canary is an address for probes that verify whether routers use this node's routes.
type canary struct {
	address netip.Addr
	peer    string
}

// canaries are the canaries of the last snapshot. Each is added as a VIP without claims, so that it is in the
// maps and the BPF programs see its packets.
type canaries struct {
	objects    map[canary]*millracev1beta1.VIP
	peers      map[*millracev1beta1.VIP]string
	given, all []*millracev1beta1.VIP
}

func (b *builder) addCanaries() {
	c := &b.previous.canaries
	objects := map[canary]*millracev1beta1.VIP{}
	same := delta.IsSame(c.given, b.snapshot.VIPs)
	for _, one := range b.ownCanaries() {
		object := c.objects[one]
		if object == nil {
			same = false
			object = &millracev1beta1.VIP{
				ObjectMeta: metav1.ObjectMeta{Name: millracev1beta1.VIPName(one.address)},
				Spec:       millracev1beta1.VIPSpec{Address: one.address.String()},
			}
		}
		objects[one] = object
	}
	if same = same && len(objects) == len(c.objects); !same {
		c.given, c.all = b.snapshot.VIPs, b.snapshot.VIPs
		c.peers = make(map[*millracev1beta1.VIP]string, len(objects))
		if len(objects) > 0 {
			c.all = slices.Clone(c.given)
		}
		for one, object := range objects {
			c.peers[object] = one.peer
			c.all = append(c.all, object)
		}
	}
	c.objects = objects
	if len(objects) > 0 {
		snapshot := *b.snapshot
		snapshot.VIPs = c.all
		b.snapshot = &snapshot
	}
}

// ownCanaries returns the canaries of peers that select this node. A VIP precedes a canary with the same
// address, and an older LBPeer precedes a younger one.
func (b *builder) ownCanaries() (own []canary) {
	has := func(peer *millracev1beta1.LBPeer) bool { return peer != nil && len(peer.Spec.Canaries) > 0 }
	if !slices.ContainsFunc(b.snapshot.Peers, has) {
		return nil
	}
	taken := map[netip.Addr]bool{}
	for _, object := range b.snapshot.VIPs {
		if object == nil {
			continue
		}
		if address, problems := desired.ParseVIP(object); len(problems) == 0 {
			taken[address] = true
		}
	}
	for _, object := range oldestFirst(b.snapshot.Peers) {
		peer, problems := desired.ParsePeer(object)
		if len(problems) > 0 || !b.isForThisNode(peer.Nodes) {
			continue
		}
		for _, address := range peer.Canaries {
			if taken[address] {
				b.problem(ObjectReference{Kind: "LBPeer", Name: object.Name}, ReasonDuplicate,
					"spec.canaries: %s is a VIP, or the canary of an older LBPeer: use an unused address", address)
				continue
			}
			taken[address] = true
			own = append(own, canary{address, object.Name})
		}
	}
	return own
}
