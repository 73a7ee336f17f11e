// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func counted(pool *millracev1beta1.VIPPool, assigned, free int64) error {
	status := pool.Status
	if status.Assigned == nil || status.Free == nil || *status.Assigned != assigned || *status.Free != free {
		return fmt.Errorf("status of pool %s = %+v, want %d assigned and %d free", pool.Name, status, assigned, free)
	}
	return nil
}

func refusedPools(t *testing.T, e *environment) {
	for text, want := range map[string]string{
		"203.0.113.1/24": "host bits set", "2001:db8::1/64": "host bits set", "10.0.0.1/8": "host bits set",
		"203.0.113.1-2001:db8::1": "mix families", "2001:db8::1-203.0.113.1": "mix families",
		"203.0.113.20-203.0.113.10": "must not be inverted", "203.0.113.9 - 203.0.112.10": "must not be inverted",
		"10.0.0.0-9.255.255.255": "must not be inverted", "203.0.113.100-203.0.113.20": "must not be inverted",
		"224.0.0.0/28": "must be unicast", "223.255.255.0-224.0.0.1": "must be unicast", "127.0.0.0/30": "must be unicast",
		"fe80::/64": "must be unicast", "ff05::/64": "must be unicast", "::/0": "must be unicast", "169.254.0.1-169.254.0.2": "must be unicast",
		"203.0.113.1": "must be a CIDR", "web": "must be a CIDR",
	} {
		pool := &millracev1beta1.VIPPool{ObjectMeta: metav1.ObjectMeta{Name: "refused"}, Spec: millracev1beta1.VIPPoolSpec{Addresses: []string{text}}}
		if err := e.client.Create(t.Context(), pool); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("pool with %s: %v, want an error with %q", text, err, want)
		}
	}
	// The longest possible pools stay within the API server's cost budget.
	var full, full4 []string
	for i := range 256 {
		full4 = append(full4, fmt.Sprintf("%33s203.0.%d.9 - 203.0.%d.100%33s", "", i, i, ""))
		full = append(full, fmt.Sprintf(" 2001:0db8:0000:0000:0000:0000:%04x:0000 - 2001:0db8:0000:0000:0000:0000:%04x:ffff ", i, i))
	}
	e.pool(t, "full", func(spec *millracev1beta1.VIPPoolSpec) { spec.Reserved = full }, full...)
	e.pool(t, "full-ipv4", func(spec *millracev1beta1.VIPPoolSpec) { spec.Reserved = full4 }, full4...)
	for text, valid := range map[string]bool{
		"198.51.100.1": true, "2001:db8::1": true, "127.0.0.1": true, "169.254.255.1": true,
		"fe80::1": false, "224.0.0.1": false, "ff02::1": false, "0.0.0.0": false, "::": false,
	} {
		peer := &millracev1beta1.LBPeer{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "peer-"},
			Spec:       millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Address: text}, PeerASN: 64512, LocalASN: 64513},
		}
		if err := e.client.Create(t.Context(), peer); (err == nil) != valid {
			t.Errorf("peer with %s: %v, want valid = %t", text, err, valid)
		}
	}
}

func refusedCommunities(t *testing.T, e *environment) {
	for text, want := range map[string]string{
		"65535:65535": "", "0:0": "", "00064512:1": "", "4294967295:4294967295:0": "",
		"65536:1": "from 0 to 65535", "65000:70000": "from 0 to 65535", "64512:9999999999": "from 0 to 65535",
		"4294967296:1:1": "from 0 to 4294967295", "64512:1:4294967296": "from 0 to 4294967295",
		"no-export": "", "graceful-shutdown": "", "rt:64512:1": "", "no-exports": "should match", "64512": "should match", "64512:1:1:1": "should match", "-1:1": "should match",
	} {
		object := &millracev1beta1.VIPAdvertisement{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "refused-"},
			Spec:       millracev1beta1.VIPAdvertisementSpec{Communities: []string{text}},
		}
		err := e.client.Create(t.Context(), object)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("advertisement with community %s: %v, want an error with %q", text, err, want)
		}
	}
}

func badPools(t *testing.T, e *environment) {
	e.run(t)
	// The schema accepts it, because only a comparison with all special ranges finds the problem.
	bad := e.pool(t, "a-loopback", nil, "198.51.100.0/28", "126.0.0.0-128.0.0.0")
	e.ready(t, bad, &bad.Status.Conditions, millracev1beta1.ReasonInvalid,
		"spec.addresses[1]: 126.0.0.0-128.0.0.0 has loopback addresses (127.0.0.0/8), which cannot be announced")
	e.pool(t, "good", nil, "203.0.113.0/28")
	e.addresses(t, e.service(t, "web"), "203.0.113.0")
	must(t, e.get(t.Context(), bad))
	if err := counted(bad, 0, 0); err != nil || len(bad.Status.Usable) > 0 {
		t.Errorf("pool that is not usable: %v, usable %v", err, bad.Status.Usable)
	}
}

func poolColumns(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/30")
	shows := func(assigned, free string) {
		t.Helper()
		eventually(t, func(ctx context.Context) error {
			row, err := e.row(ctx, "vippools", "main")
			if err == nil && (fmt.Sprint(row["Assigned"]) != assigned || fmt.Sprint(row["Free"]) != free || row["Ready"] != "True") {
				err = fmt.Errorf("kubectl get prints %v, want %s assigned and %s free", row, assigned, free)
			}
			return err
		})
	}
	shows("0", "4")
	for i := range 4 {
		e.service(t, fmt.Sprintf("web%d", i))
	}
	shows("4", "0")
}

func (e *environment) row(ctx context.Context, resource, name string) (map[string]any, error) {
	config := rest.CopyConfig(e.server.Admin())
	config.GroupVersion = &millracev1beta1.GroupVersion
	config.APIPath = "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(e.client.Scheme()).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	table := &metav1.Table{}
	err = client.Get().Resource(resource).Name(name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(ctx).Into(table)
	if err != nil {
		return nil, err
	}
	row := map[string]any{}
	for i, column := range table.ColumnDefinitions {
		row[column.Name] = table.Rows[0].Cells[i]
	}
	return row, nil
}

func (e *environment) usable(t *testing.T, pool *millracev1beta1.VIPPool, want ...string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, pool); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(pool.Status.Conditions, millracev1beta1.ConditionReady) || !slices.Equal(pool.Status.Usable, want) {
			return fmt.Errorf("pool %s = %+v, want ready with %v", pool.Name, pool.Status, want)
		}
		return nil
	})
}

func overlappingPools(t *testing.T, e *environment) {
	e.run(t)
	good := e.pool(t, "good", nil, "203.0.113.0/28")
	e.usable(t, good, "203.0.113.0/28")
	first := func(spec *millracev1beta1.VIPPoolSpec) { spec.Priority = 100 }
	overlapping := e.pool(t, "z-overlap", first, "203.0.113.8-203.0.113.17")
	e.ready(t, overlapping, &overlapping.Status.Conditions, millracev1beta1.ReasonPoolOverlap,
		`spec.addresses[0]: 203.0.113.8-203.0.113.17 overlaps the older pool "good", which keeps 203.0.113.8/29`)
	e.usable(t, overlapping, "203.0.113.16/31")
	e.ready(t, good, &good.Status.Conditions, millracev1beta1.ReasonValid, "")
	for i, address := range []string{"203.0.113.16", "203.0.113.17", "203.0.113.0"} {
		e.addresses(t, e.service(t, fmt.Sprintf("web%d", i)), address)
	}
	inside := e.pool(t, "z-within", nil, "203.0.113.4/31")
	e.ready(t, inside, &inside.Status.Conditions, millracev1beta1.ReasonPoolOverlap, "no address is left to assign")
	if meta.IsStatusConditionTrue(inside.Status.Conditions, millracev1beta1.ConditionReady) {
		t.Error("a pool without addresses is ready")
	}
	must(t, e.client.Delete(t.Context(), good))
	e.usable(t, inside, "203.0.113.4/31")
	e.usable(t, overlapping, "203.0.113.8-203.0.113.17")
	e.addresses(t, e.service(t, "late"), "203.0.113.8")
}

func occupiedPools(t *testing.T, e *environment) {
	e.run(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Spec: corev1.NodeSpec{PodCIDR: "203.0.113.4/30", PodCIDRs: []string{"203.0.113.4/30"}}}
	must(t, e.client.Create(t.Context(), node))
	e.setAddresses(t, node, "203.0.113.0")
	router := &millracev1beta1.LBPeer{
		ObjectMeta: metav1.ObjectMeta{Name: "router1"},
		Spec:       millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Address: "203.0.113.1"}, PeerASN: 64512, LocalASN: 64513},
	}
	must(t, e.client.Create(t.Context(), router))
	pool := e.pool(t, "main", nil, "203.0.113.0/29", "10.96.255.0-10.97.0.7")
	e.ready(t, pool, &pool.Status.Conditions, millracev1beta1.ReasonOccupied,
		`spec.addresses: never assigned: 203.0.113.1 (LBPeer "router1"), 203.0.113.0 (Node "node1"), `+
			`203.0.113.4/30 (the pods of Node "node1"), 10.96.255.0/24 (ServiceCIDR "kubernetes")`)
	e.usable(t, pool, "10.97.0.0/29", "203.0.113.2/31")
	service := e.service(t, "asks", annotated(millracev1beta1.AnnotationAddresses, "203.0.113.1"))
	e.condition(t, service, metav1.ConditionFalse, millracev1beta1.ReasonAddressNotInPool, "203.0.113.1 is not in ")
	e.addresses(t, e.service(t, "web"), "10.97.0.0")

	must(t, e.client.Delete(t.Context(), router))
	e.addresses(t, service, "203.0.113.1")
	// Assigned addresses are kept if another object gets them, and the pool reports it.
	e.setAddresses(t, node, "203.0.113.0", "203.0.113.1")
	e.ready(t, pool, &pool.Status.Conditions, millracev1beta1.ReasonOccupied, "1 assigned addresses no longer belong to the pool")
	e.addresses(t, service, "203.0.113.1")
	// Agents do not serve a node's address: the VIP and the Service report it until it is free again.
	const occupied = `203.0.113.1 is the address of Node "node1"`
	vip := vipOf("203.0.113.1")
	e.ready(t, vip, &vip.Status.Conditions, millracev1beta1.ReasonOccupied, occupied)
	e.served(t, service, metav1.ConditionFalse, millracev1beta1.ReasonOccupied, occupied)
	e.setAddresses(t, node, "203.0.113.0")
	e.ready(t, vip, &vip.Status.Conditions, millracev1beta1.ReasonValid, "")
	e.served(t, service, metav1.ConditionFalse, millracev1beta1.ReasonNotSelected, "")

	// Conversely, a VIP is reserved manually after a router has its address.
	must(t, e.client.Create(t.Context(), &millracev1beta1.LBPeer{
		ObjectMeta: metav1.ObjectMeta{Name: "router2"},
		Spec:       millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Address: "203.0.113.77"}, PeerASN: 64512, LocalASN: 64513},
	}))
	reserved := vipOf("203.0.113.77")
	reserved.Spec.Claims = []millracev1beta1.VIPClaim{{Namespace: service.Namespace, Name: "byhand"}}
	must(t, e.client.Create(t.Context(), reserved))
	e.ready(t, reserved, &reserved.Status.Conditions, millracev1beta1.ReasonOccupied, `LBPeer "router2"`)
	byhand := e.service(t, "byhand", annotated(millracev1beta1.AnnotationAddresses, "203.0.113.77"))
	e.served(t, byhand, metav1.ConditionFalse, millracev1beta1.ReasonOccupied, `LBPeer "router2"`)
}
