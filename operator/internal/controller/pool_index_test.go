// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Networks do not count as addresses of hosts.
func TestHosts(t *testing.T) {
	b := newPoolIndex()
	one, two := netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2")
	node := func(name string, addresses ...netip.Addr) []desired.Occupied {
		object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: "203.0.113.9/32"}}
		for _, address := range addresses {
			object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address.String()})
		}
		return desired.OccupiedByNode(object)
	}
	router := desired.OccupiedByPeer(&millracev1beta1.LBPeer{
		ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Address: one.String()}},
	})
	for i, step := range []struct {
		key      occupant
		occupied []desired.Occupied
		changed  []netip.Addr
		one, two string
	}{
		{occupant{kind: "Node", name: "b"}, node("b", one), []netip.Addr{one}, `Node "b"`, ""},
		{occupant{kind: "Node", name: "b"}, node("b", one), nil, `Node "b"`, ""},
		{occupant{kind: "LBPeer", name: "r"}, router, []netip.Addr{one}, `LBPeer "r"`, ""},
		{occupant{kind: "Node", name: "b"}, node("b", two), []netip.Addr{one, two}, `LBPeer "r"`, `Node "b"`},
		{occupant{kind: "LBPeer", name: "r"}, nil, []netip.Addr{one}, "", `Node "b"`},
		{occupant{kind: "Node", name: "b"}, nil, []netip.Addr{two}, "", ""},
	} {
		changed, _ := b.put(step.key, step.occupied)
		host := func(address netip.Addr) string {
			by, younger := b.host(address, &millracev1beta1.VIP{})
			return by + younger
		}
		if !slices.Equal(changed, step.changed) || host(one) != step.one || host(two) != step.two {
			t.Errorf("step %d: changed = %v; host of the first = %s, of the second = %s", i, changed, host(one), host(two))
		}
		if network := host(netip.MustParseAddr("203.0.113.9")); network != "" {
			t.Errorf("step %d: host of a network address = %s", i, network)
		}
	}
	if len(b.hosts) > 0 {
		t.Errorf("remaining: %v", b.hosts)
	}

	// The older of a host and a VIP keeps the address.
	at := func(second int64) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "at", CreationTimestamp: metav1.Unix(second, 0)}
	}
	peer := &millracev1beta1.LBPeer{ObjectMeta: at(5), Spec: millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Address: one.String()}}}
	b.put(occupant{kind: "LBPeer", name: "at"}, desired.OccupiedByPeer(peer))
	for second, want := range map[int64][2]string{4: {"", `LBPeer "at"`}, 5: {`LBPeer "at"`, ""}, 6: {`LBPeer "at"`, ""}} {
		if host, younger := b.host(one, &millracev1beta1.VIP{ObjectMeta: at(second)}); [2]string{host, younger} != want {
			t.Errorf("hosts of a VIP created at second %d = %q and %q", second, host, younger)
		}
	}
}
