// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"slices"
	"testing"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func clusterNode(name string, podCIDRs []string, addresses ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs}}
	for _, address := range addresses {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	return node
}

func TestOccupied(t *testing.T) {
	node := clusterNode("node1", []string{"10.244.1.0/24", "2001:db8:1::/64", "nonsense"}, "10.0.0.11", "2001:db8::11", "node1")
	node.Status.Addresses = append(node.Status.Addresses,
		corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "203.0.113.11"},
		corev1.NodeAddress{Type: corev1.NodeHostName, Address: "203.0.113.12"})
	router := peerAged("tor", 0, func(s *millracev1beta1.LBPeerSpec) { s.Router.Address = "10.0.0.1" })
	all := OccupiedByNode(node)
	all = append(all, OccupiedByNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Spec: corev1.NodeSpec{PodCIDR: "10.244.2.0/24"}})...)
	all = append(all, OccupiedByPeer(&router)...)
	all = append(all, OccupiedByPeer(&millracev1beta1.LBPeer{})...)
	all = append(all, OccupiedByServiceCIDR(&networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}},
	})...)
	all = append(all, OccupiedByService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.112.0.1", "None"}},
	})...)
	var got []string
	for _, occupied := range all {
		got = append(got, rangeText(occupied.Range)+" "+occupied.By)
	}
	want := []string{
		`10.0.0.11 Node "node1"`, `2001:db8::11 Node "node1"`, `203.0.113.11 Node "node1"`,
		`10.244.1.0/24 the pods of Node "node1"`, `2001:db8:1::/64 the pods of Node "node1"`, `10.244.2.0/24 the pods of Node "old"`,
		`10.0.0.1 LBPeer "tor"`, `10.96.0.0/12 ServiceCIDR "kubernetes"`, `10.112.0.1 the cluster IP of Service default/web`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("occupied: %q, want %q", got, want)
	}

	pools, problems := Pools([]millracev1beta1.VIPPool{
		poolAged("wide", 1, "10.0.0.0/8"), poolAged("apart", 0, "198.51.100.0/24"), poolAged("within", 0, "10.100.0.0/16"),
		with(poolAged("careful", 0, "203.0.113.8/29"), func(s *millracev1beta1.VIPPoolSpec) { s.Reserved = []string{"203.0.113.11"} }),
	}, NewOccupation(all))
	checkProblems(t, limitsOf(pools), []string{
		`wide PoolOverlap spec.addresses[0]: 10.0.0.0/8 overlaps the older pool "within"`,
		`wide Occupied spec.addresses: never assigned: 10.0.0.11 (Node "node1"), 10.244.1.0/24 (the pods of Node "node1"), ` +
			`10.244.2.0/24 (the pods of Node "old"), 10.0.0.1 (LBPeer "tor"), 10.96.0.0/14, 10.101.0.0-10.111.255.255 (ServiceCIDR "kubernetes"), 1 more`,
	})
	checkProblems(t, problems, []string{
		`within Occupied spec.addresses: never assigned: 10.100.0.0/16 (ServiceCIDR "kubernetes")`,
		"within Occupied spec.addresses: no address is left to assign",
	})
	for _, occupied := range all {
		for _, pool := range pools {
			if pool.Addresses.OverlapsRange(occupied.Range) {
				t.Errorf("pool %s gives out addresses of %s", pool.Name, occupied.By)
			}
		}
	}
}

func TestUsableRangesAreBounded(t *testing.T) {
	var occupied []Occupied
	for i := range 3000 {
		text := fmt.Sprintf("10.0.%d.%d", i/128, i%128*2)
		r, err := ParseRange(text)
		if err != nil {
			t.Fatal(err)
		}
		occupied = append(occupied, Occupied{Range: r, By: "Node " + text})
	}
	object := poolAged("wide", 0, "10.0.0.0/8", "2001:db8::/64")
	pools, _ := Pools([]millracev1beta1.VIPPool{object}, NewOccupation(occupied))
	object.Status.Usable = pools[0].UsableRanges()
	if len(object.Status.Usable) != 512 || !slices.Contains(object.Status.Usable, "2001:db8::/64") {
		t.Fatalf("%d ranges are reported: %v", len(object.Status.Usable), object.Status.Usable)
	}
	parsed, _ := ParsePool(&object)
	ranges := ParseUsable(&object, parsed)
	if rest := difference(ranges, pools[0].Addresses); !rest.Equal(&netipx.IPSet{}) {
		t.Errorf("got addresses that are not usable: %v", rest.Ranges())
	}
	if r, _ := ParseRange("10.128.0.0/9"); !ranges.ContainsRange(r) {
		t.Error("the largest range is not reported")
	}
}

func TestParseUsable(t *testing.T) {
	object := with(poolAged("a", 0, "203.0.113.0/28"), func(s *millracev1beta1.VIPPoolSpec) { s.Reserved = []string{"203.0.113.1"} })
	pool, _ := ParsePool(&object)
	if got := ParseUsable(&object, pool); !isEmpty(got) {
		t.Errorf("before the operator has declared them, %v are usable", got.Ranges())
	}
	object.Status.Usable = []string{"203.0.113.0/29", "203.0.113.12-203.0.113.40", "nonsense", "198.51.100.1"}
	want := setOf(netipx.MustParseIPRange("203.0.113.0-203.0.113.0"), netipx.MustParseIPRange("203.0.113.2-203.0.113.7"), netipx.MustParseIPRange("203.0.113.12-203.0.113.15"))
	if got := ParseUsable(&object, pool); !got.Equal(want) {
		t.Errorf("usable are %v, want %v", got.Ranges(), want.Ranges())
	}
}
