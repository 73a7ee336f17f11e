// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func routing(t *testing.T, e *environment) {
	e.run(t)
	peer := func(name, address string) *millracev1beta1.LBPeer {
		peer := &millracev1beta1.LBPeer{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Address: address}, PeerASN: 64512, LocalASN: 64513},
		}
		must(t, e.client.Create(t.Context(), peer))
		return peer
	}
	good := peer("router1", "198.51.100.1")
	e.ready(t, good, &good.Status.Conditions, millracev1beta1.ReasonValid, "")
	duplicate := peer("router2", "198.51.100.1")
	e.ready(t, duplicate, &duplicate.Status.Conditions, millracev1beta1.ReasonInvalid,
		`spec.router.address: 198.51.100.1 port 179 belongs to the older LBPeer "router1"`)
	none := &millracev1beta1.LBPeer{
		ObjectMeta: metav1.ObjectMeta{Name: "none"},
		Spec:       millracev1beta1.LBPeerSpec{PeerASN: 64512, LocalASN: 64513},
	}
	if err := e.client.Create(t.Context(), none); err == nil {
		t.Error("no error for a peer without an address")
	}
	advertisement := &millracev1beta1.VIPAdvertisement{
		ObjectMeta: metav1.ObjectMeta{Name: "all"},
		Spec:       millracev1beta1.VIPAdvertisementSpec{Pools: []string{"main"}, Communities: []string{"64512:70000:1"}},
	}
	must(t, e.client.Create(t.Context(), advertisement))
	e.ready(t, advertisement, &advertisement.Status.Conditions, millracev1beta1.ReasonInvalid,
		`spec.pools[0]: VIPPool "main" does not exist`)
	e.pool(t, "main", nil, "203.0.113.0/24")
	e.ready(t, advertisement, &advertisement.Status.Conditions, millracev1beta1.ReasonValid, "")
	conflicts(t, e, advertisement)
}

func conflicts(t *testing.T, e *environment, first *millracev1beta1.VIPAdvertisement) {
	t.Helper()
	second := &millracev1beta1.VIPAdvertisement{
		ObjectMeta: metav1.ObjectMeta{Name: "second"},
		Spec:       millracev1beta1.VIPAdvertisementSpec{Communities: []string{"64512:2"}},
	}
	must(t, e.client.Create(t.Context(), second))
	conflicting := func(object *millracev1beta1.VIPAdvertisement, status metav1.ConditionStatus, message string) {
		t.Helper()
		eventually(t, func(ctx context.Context) error {
			if err := e.get(ctx, object); err != nil {
				return err
			}
			condition := meta.FindStatusCondition(object.Status.Conditions, millracev1beta1.ConditionConflicted)
			if condition == nil || condition.Status != status || condition.Message != message {
				return fmt.Errorf("Conflicted of %s = %+v", object.Name, condition)
			}
			return nil
		})
	}
	conflicting(second, metav1.ConditionFalse, "")
	e.node(t, "worker", "198.51.100.10")
	service := e.service(t, "advertised")
	e.addresses(t, service, "203.0.113.0")
	conflicting(second, metav1.ConditionTrue, "203.0.113.0 is announced to LBPeer router1 "+
		"with the attributes of VIPAdvertisement all, which also selects it and is the first by name")
	conflicting(first, metav1.ConditionFalse, "")
	must(t, e.client.Delete(t.Context(), service))
	conflicting(second, metav1.ConditionFalse, "")
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

func (e *environment) lbNode(t *testing.T, node *corev1.Node, addresses ...string) *millracev1beta1.LBNode {
	t.Helper()
	lbNode := &millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, lbNode); err != nil {
			return err
		}
		owners := lbNode.OwnerReferences
		if !slices.Equal(lbNode.Spec.Addresses, addresses) || len(owners) != 1 || owners[0].UID != node.UID {
			return fmt.Errorf("LBNode %s = %+v with owners %+v", lbNode.Name, lbNode.Spec, owners)
		}
		return nil
	})
	return lbNode
}

func nodes(t *testing.T, e *environment) {
	first := e.run(t)
	var all []*corev1.Node
	ids := sets.New[int32]()
	for i := range 10 {
		all = append(all, e.node(t, fmt.Sprintf("node%d", i), fmt.Sprintf("198.51.100.%d", i+1), fmt.Sprintf("2001:db8::%d", i+1), "198.51.100.200"))
	}
	for i, node := range all {
		ids.Insert(e.lbNode(t, node, fmt.Sprintf("198.51.100.%d", i+1), fmt.Sprintf("2001:db8::%d", i+1)).Spec.ID)
	}
	if len(ids) != 10 || !ids.Has(1) || !ids.Has(10) {
		t.Errorf("ids = %v", sets.List(ids))
	}
	e.setAddresses(t, all[3], "198.51.100.44")
	before := e.lbNode(t, all[3], "198.51.100.44")

	// Pod networks may be assigned after a node has registered.
	update(t, e, all[3], func(node *corev1.Node) {
		node.Spec.PodCIDR, node.Spec.PodCIDRs = "198.18.3.0/24", []string{"198.18.3.0/24"}
	})
	eventually(t, func(ctx context.Context) error {
		lbNode := &millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: all[3].Name}}
		if err := e.get(ctx, lbNode); err != nil {
			return err
		}
		if !slices.Equal(lbNode.Spec.PodCIDRs, []string{"198.18.3.0/24"}) {
			return fmt.Errorf("pod networks of LBNode %s = %v", lbNode.Name, lbNode.Spec.PodCIDRs)
		}
		return nil
	})

	// A node that registers again keeps its ID; a new node gets no recently used ID.
	must(t, e.client.Delete(t.Context(), all[3]))
	all[3] = e.node(t, all[3].Name, "198.51.100.45")
	if after := e.lbNode(t, all[3], "198.51.100.45"); after.Spec.ID != before.Spec.ID {
		t.Errorf("id changed from %d to %d", before.Spec.ID, after.Spec.ID)
	}
	freed := e.lbNode(t, all[4], "198.51.100.5", "2001:db8::5")
	must(t, e.client.Delete(t.Context(), all[4]))
	must(t, e.client.Delete(t.Context(), freed))
	next := e.lbNode(t, e.node(t, "next", "198.51.100.50"), "198.51.100.50")
	if next.Spec.ID != 11 {
		t.Errorf("id of the next node = %d", next.Spec.ID)
	}
	first.kill(t)
	must(t, e.client.Delete(t.Context(), next))
	must(t, e.client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: next.Name}}))
	e.run(t)
	// One more ID is skipped after a retried write, because it may be in use.
	if after := e.lbNode(t, e.node(t, "after", "198.51.100.51"), "198.51.100.51"); after.Spec.ID < 12 {
		t.Errorf("after a restart, the next node has id %d, which was released recently", after.Spec.ID)
	}
}

func departures(t *testing.T, e *environment) {
	e.run(t)
	node := e.node(t, "departing", "198.51.100.1")
	departs := func(want millracev1beta1.DrainReason, change func(*corev1.Node)) {
		t.Helper()
		update(t, e, node, change)
		eventually(t, func(ctx context.Context) error {
			lbNode := &millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
			if err := e.get(ctx, lbNode); err != nil {
				return err
			}
			if lbNode.Spec.DrainReason != want {
				return fmt.Errorf("DrainReason of LBNode %s = %q, want %q", lbNode.Name, lbNode.Spec.DrainReason, want)
			}
			return nil
		})
	}
	departs(millracev1beta1.DrainReasonCordoned, func(node *corev1.Node) { node.Spec.Unschedulable = true })
	departs(millracev1beta1.DrainReasonDrained, func(node *corev1.Node) {
		node.Annotations = map[string]string{millracev1beta1.AnnotationDrain: ""}
	})
	departs(millracev1beta1.DrainReasonCordoned, func(node *corev1.Node) { node.Annotations = nil })
	departs("", func(node *corev1.Node) { node.Spec.Unschedulable = false })
}

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
			lbNode := &millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
			if err := e.get(ctx, lbNode); err != nil {
				return err
			}
			if lbNode.Spec.Zone != zone {
				return fmt.Errorf("zone of LBNode %s = %q, want %q", lbNode.Name, lbNode.Spec.Zone, zone)
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

// boots verifies that the operator ignores boot IDs of Nodes, so its restart marks no node as booted.
func boots(t *testing.T, e *environment) {
	lbNode := &millracev1beta1.LBNode{
		ObjectMeta: metav1.ObjectMeta{Name: "booting"},
		Spec:       millracev1beta1.LBNodeSpec{ID: 1},
	}
	must(t, e.client.Create(t.Context(), lbNode))
	lbNode.Status = millracev1beta1.LBNodeStatus{BootID: "first", ServingBootID: "first"}
	must(t, e.client.Status().Update(t.Context(), lbNode))
	node := e.node(t, "booting", "198.51.100.1")
	node.Status.NodeInfo.BootID = "second"
	must(t, e.client.Status().Update(t.Context(), node))
	e.run(t)
	if kept := e.lbNode(t, node, "198.51.100.1"); !equality.Semantic.DeepEqual(kept.Status, lbNode.Status) {
		t.Errorf("after a reboot of the Node: LBNode %+v", kept)
	}
}

func idsWrap(t *testing.T, e *environment) {
	for name, id := range map[string]int32{"one": 1, "highest": 4095} {
		must(t, e.client.Create(t.Context(), &millracev1beta1.LBNode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       millracev1beta1.LBNodeSpec{ID: id},
		}))
	}
	e.run(t)
	wrapped := e.lbNode(t, e.node(t, "wrapped"))
	if wrapped.Spec.ID != 2 {
		t.Errorf("id after the highest = %d", wrapped.Spec.ID)
	}
	must(t, e.client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: wrapped.Name}}))
	must(t, e.client.Delete(t.Context(), wrapped))
	if next := e.lbNode(t, e.node(t, "next")); next.Spec.ID != 3 {
		t.Errorf("id after the release of another = %d", next.Spec.ID)
	}
}

// reports checks that conditions are Unknown while the node is not ready until its agent reports again.
func reports(t *testing.T, e *environment) {
	e.run(t)
	node := e.node(t, "reporting", "198.51.100.1")
	lbNode := e.lbNode(t, node, "198.51.100.1")
	e.report(t, "owned by the LBNode", ownedBy(lbNode))

	agent := func(status metav1.ConditionStatus) {
		t.Helper()
		report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
		must(t, e.get(t.Context(), report))
		report.Status.Version = "v1"
		for _, kind := range []string{millracev1beta1.ConditionReady, millracev1beta1.ConditionProgrammed} {
			meta.SetStatusCondition(&report.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: "Agent"})
		}
		must(t, e.client.Status().Update(t.Context(), report))
	}
	kubelet := func(status corev1.ConditionStatus, at int64) {
		t.Helper()
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: status, LastTransitionTime: metav1.Unix(at, 0), LastHeartbeatTime: metav1.Now(),
		}}
		must(t, e.client.Status().Update(t.Context(), node))
	}
	agent(metav1.ConditionTrue)
	kubelet(corev1.ConditionTrue, 1)
	kubelet(corev1.ConditionUnknown, 2)
	dead := conditions("Ready=Unknown", "Programmed=True", "NodeReady=Unknown")
	e.report(t, "dead", dead)
	// The agent's conditions stay, even if other fields of the Node change.
	agent(metav1.ConditionTrue)
	kubelet(corev1.ConditionUnknown, 2)
	alive := conditions("Ready=True", "Programmed=True", "NodeReady=Unknown")
	e.node(t, "another")
	eventually(t, func(ctx context.Context) error {
		return e.get(ctx, &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: "another"}})
	})
	e.report(t, "alive all the same", alive)
	kubelet(corev1.ConditionFalse, 3)
	e.report(t, "not ready in another way", conditions("Ready=Unknown", "Programmed=True", "NodeReady=False"))
	kubelet(corev1.ConditionTrue, 4)
	e.report(t, "ready again, the agent not yet", conditions("Ready=Unknown", "Programmed=True"))

	must(t, e.client.Delete(t.Context(), &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}))
	e.report(t, "created again", conditions())
	must(t, e.client.Delete(t.Context(), lbNode))
	e.report(t, "owned by the next LBNode", func(report *millracev1beta1.LBNodeReport) error {
		return ownedBy(e.lbNode(t, node, "198.51.100.1"))(report)
	})
}

func (e *environment) report(t *testing.T, what string, check func(*millracev1beta1.LBNodeReport) error) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: "reporting"}}
		if err := e.get(ctx, report); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if err := check(report); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
}

func ownedBy(lbNode *millracev1beta1.LBNode) func(*millracev1beta1.LBNodeReport) error {
	return func(report *millracev1beta1.LBNodeReport) error {
		if owners := report.OwnerReferences; len(owners) != 1 || owners[0].UID != lbNode.UID || owners[0].Kind != "LBNode" {
			return fmt.Errorf("owners = %+v, want %s", owners, lbNode.UID)
		}
		return nil
	}
}

func conditions(want ...string) func(*millracev1beta1.LBNodeReport) error {
	return func(report *millracev1beta1.LBNodeReport) error {
		var have []string
		for _, condition := range report.Status.Conditions {
			have = append(have, fmt.Sprintf("%s=%s", condition.Type, condition.Status))
		}
		if slices.Sort(have); !slices.Equal(have, slices.Sorted(slices.Values(want))) {
			return fmt.Errorf("conditions = %v, want %v", have, want)
		}
		return nil
	}
}

func duplicateIDs(t *testing.T, e *environment) {
	a, b := e.node(t, "a"), e.node(t, "b")
	for _, node := range []*corev1.Node{a, b} {
		lbNode := &millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Spec: millracev1beta1.LBNodeSpec{ID: 7}}
		must(t, e.client.Create(t.Context(), lbNode))
	}
	e.run(t)
	eventually(t, func(ctx context.Context) error {
		lbNode := &millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
		if err := e.get(ctx, lbNode); err != nil {
			return err
		}
		if lbNode.Spec.ID != 8 {
			return fmt.Errorf("id of the newer LBNode = %d", lbNode.Spec.ID)
		}
		return nil
	})
	if kept := e.lbNode(t, a); kept.Spec.ID != 7 {
		t.Errorf("id of the older LBNode = %d", kept.Spec.ID)
	}
}
