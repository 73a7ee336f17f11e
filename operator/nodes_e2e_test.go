// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

func badPools(t *testing.T, e *environment) {
	e.run(t)
	good := e.pool(t, "good", nil, "203.0.113.0/28")
	inverted := e.pool(t, "a-inverted", nil, "198.51.100.0/28", "203.0.113.20-203.0.113.10")
	e.ready(t, inverted, &inverted.Status.Conditions, millracev1alpha1.ReasonInvalid,
		"spec.addresses[1]: range 203.0.113.20-203.0.113.10 is inverted: the first address must not be higher than the last")
	overlapping := e.pool(t, "z-overlap", func(spec *millracev1alpha1.IPPoolSpec) { spec.Priority = 100 }, "198.51.100.64/28", "203.0.113.8/29")
	e.ready(t, overlapping, &overlapping.Status.Conditions, millracev1alpha1.ReasonOverlap,
		`spec.addresses[1]: 203.0.113.8/29 overlaps the older pool "good" in 203.0.113.8-203.0.113.15`)
	e.ready(t, good, &good.Status.Conditions, millracev1alpha1.ReasonValid, "")
	if overlapping.Status.Free != 0 || inverted.Status.Free != 0 {
		t.Errorf("pools that are not used have %d and %d free addresses", overlapping.Status.Free, inverted.Status.Free)
	}
	e.addresses(t, e.service(t, "web"), "203.0.113.0")
	update(t, e, overlapping, func(pool *millracev1alpha1.IPPool) { pool.Spec.Addresses = []string{"198.51.100.64/28"} })
	e.ready(t, overlapping, &overlapping.Status.Conditions, millracev1alpha1.ReasonValid, "")
	e.addresses(t, e.service(t, "next"), "198.51.100.64")
}

func routing(t *testing.T, e *environment) {
	e.run(t)
	peer := func(name, address string) *millracev1alpha1.BGPPeer {
		peer := &millracev1alpha1.BGPPeer{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       millracev1alpha1.BGPPeerSpec{PeerAddress: address, PeerASN: 64512, LocalASN: 64513},
		}
		must(t, e.client.Create(t.Context(), peer))
		return peer
	}
	good := peer("router1", "198.51.100.1")
	e.ready(t, good, &good.Status.Conditions, millracev1alpha1.ReasonValid, "")
	duplicate := peer("router2", "198.51.100.1")
	e.ready(t, duplicate, &duplicate.Status.Conditions, millracev1alpha1.ReasonInvalid,
		`spec.peerAddress: 198.51.100.1 port 179 has the older BGPPeer "router1"`)
	none := &millracev1alpha1.BGPPeer{
		ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec:       millracev1alpha1.BGPPeerSpec{PeerASN: 64512, LocalASN: 64513},
	}
	if err := e.client.Create(t.Context(), none); err == nil {
		t.Error("a peer with no address was accepted")
	}
	advertisement := &millracev1alpha1.BGPAdvertisement{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		Spec:       millracev1alpha1.BGPAdvertisementSpec{Pools: []string{"main"}, Communities: []string{"64512:70000"}},
	}
	must(t, e.client.Create(t.Context(), advertisement))
	e.ready(t, advertisement, &advertisement.Status.Conditions, millracev1alpha1.ReasonInvalid,
		`spec.pools[0]: IPPool "main" does not exist; spec.communities[0]: "64512:70000": "70000" must be a number from 0 to 65535`)
	update(t, e, advertisement, func(advertisement *millracev1alpha1.BGPAdvertisement) {
		advertisement.Spec.Communities = []string{"64512:70000:1"}
	})
	e.pool(t, "main", nil, "203.0.113.0/24")
	e.ready(t, advertisement, &advertisement.Status.Conditions, millracev1alpha1.ReasonValid, "")
}

func (e *environment) node(t *testing.T, name string, addresses ...string) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	must(t, e.client.Create(t.Context(), node))
	e.setAddresses(t, node, addresses...)
	return node
}

func (e *environment) setAddresses(t *testing.T, node *corev1.Node, addresses ...string) {
	t.Helper()
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: node.Name}}
	for _, address := range addresses {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	must(t, e.client.Status().Update(t.Context(), node))
}

// lbNode waits for the LBNode of a Node, with its addresses.
func (e *environment) lbNode(t *testing.T, node *corev1.Node, addresses ...string) *millracev1alpha1.LBNode {
	t.Helper()
	lbNode := &millracev1alpha1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, lbNode); err != nil {
			return err
		}
		owners := lbNode.OwnerReferences
		if !slices.Equal(lbNode.Spec.Addresses, addresses) || len(owners) != 1 || owners[0].UID != node.UID {
			return fmt.Errorf("LBNode %s is %+v of %+v", lbNode.Name, lbNode.Spec, owners)
		}
		return nil
	})
	return lbNode
}

func nodes(t *testing.T, e *environment) {
	e.run(t)
	var all []*corev1.Node
	ids := sets.New[int32]()
	for i := range 10 {
		all = append(all, e.node(t, fmt.Sprintf("node%d", i), fmt.Sprintf("198.51.100.%d", i+1), fmt.Sprintf("2001:db8::%d", i+1), "198.51.100.200"))
	}
	for i, node := range all {
		ids.Insert(e.lbNode(t, node, fmt.Sprintf("198.51.100.%d", i+1), fmt.Sprintf("2001:db8::%d", i+1)).Spec.ID)
	}
	if len(ids) != 10 || !ids.Has(1) || !ids.Has(10) {
		t.Errorf("ids are %v", sets.List(ids))
	}
	e.setAddresses(t, all[3], "198.51.100.44")
	before := e.lbNode(t, all[3], "198.51.100.44")

	// A node that registers anew keeps its id; a new one gets none that was
	// in use just now.
	must(t, e.client.Delete(t.Context(), all[3]))
	all[3] = e.node(t, all[3].Name, "198.51.100.45")
	if after := e.lbNode(t, all[3], "198.51.100.45"); after.Spec.ID != before.Spec.ID {
		t.Errorf("id was %d, is %d", before.Spec.ID, after.Spec.ID)
	}
	freed := e.lbNode(t, all[4], "198.51.100.5", "2001:db8::5")
	must(t, e.client.Delete(t.Context(), all[4]))
	must(t, e.client.Delete(t.Context(), freed))
	if next := e.lbNode(t, e.node(t, "next", "198.51.100.50"), "198.51.100.50"); next.Spec.ID != 11 {
		t.Errorf("id of the next node is %d", next.Spec.ID)
	}
}

// zones: an LBNode has the zone that its Node is labelled with.
func zones(t *testing.T, e *environment) {
	e.run(t)
	label := func(node *corev1.Node, zone string) {
		update(t, e, node, func(node *corev1.Node) {
			node.Labels = map[string]string{corev1.LabelTopologyZone: zone}
			if zone == "" {
				node.Labels = nil
			}
		})
	}
	inZone := func(node *corev1.Node, zone string) {
		t.Helper()
		eventually(t, func(ctx context.Context) error {
			lbNode := &millracev1alpha1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
			if err := e.get(ctx, lbNode); err != nil {
				return err
			}
			if lbNode.Spec.Zone != zone {
				return fmt.Errorf("the zone of LBNode %s is %q, want %q", lbNode.Name, lbNode.Spec.Zone, zone)
			}
			return nil
		})
	}
	labelled := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: "labelled", Labels: map[string]string{corev1.LabelTopologyZone: "east"},
	}}
	must(t, e.client.Create(t.Context(), labelled))
	plain := e.node(t, "plain", "198.51.100.1")
	inZone(labelled, "east")
	inZone(plain, "")
	label(labelled, "west")
	inZone(labelled, "west")
	label(labelled, "")
	inZone(labelled, "")
}

// boots: an LBNode names the boot that its Node is in.
func boots(t *testing.T, e *environment) {
	e.run(t)
	node := e.node(t, "booting", "198.51.100.1")
	for _, boot := range []string{"", "first", "second"} {
		node.Status.NodeInfo.BootID = boot
		must(t, e.client.Status().Update(t.Context(), node))
		eventually(t, func(ctx context.Context) error {
			lbNode := &millracev1alpha1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
			if err := e.get(ctx, lbNode); err != nil {
				return err
			}
			if lbNode.Spec.BootID != boot {
				return fmt.Errorf("the boot of LBNode %s is %q, want %q", lbNode.Name, lbNode.Spec.BootID, boot)
			}
			return nil
		})
	}
}

// idsWrap: at the end of the numbers the lowest free one is next.
func idsWrap(t *testing.T, e *environment) {
	for name, id := range map[string]int32{"one": 1, "highest": 4095} {
		must(t, e.client.Create(t.Context(), &millracev1alpha1.LBNode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       millracev1alpha1.LBNodeSpec{ID: id},
		}))
	}
	e.run(t)
	if wrapped := e.lbNode(t, e.node(t, "wrapped")); wrapped.Spec.ID != 2 {
		t.Errorf("id after the highest is %d", wrapped.Spec.ID)
	}
}

func duplicateIDs(t *testing.T, e *environment) {
	a, b := e.node(t, "a"), e.node(t, "b")
	for _, node := range []*corev1.Node{a, b} {
		lbNode := &millracev1alpha1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Spec: millracev1alpha1.LBNodeSpec{ID: 7}}
		must(t, e.client.Create(t.Context(), lbNode))
	}
	e.run(t)
	eventually(t, func(ctx context.Context) error {
		lbNode := &millracev1alpha1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
		if err := e.get(ctx, lbNode); err != nil {
			return err
		}
		if lbNode.Spec.ID != 8 {
			return fmt.Errorf("id of the younger LBNode is %d", lbNode.Spec.ID)
		}
		return nil
	})
	if kept := e.lbNode(t, a); kept.Spec.ID != 7 {
		t.Errorf("id of the older LBNode is %d", kept.Spec.ID)
	}
}
