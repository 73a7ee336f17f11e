// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// A VIP that equals the address of a node or router is neither programmed nor announced, until the conflict
// ends.
func TestOccupied(t *testing.T) {
	for name, occupy := range map[string]func(s *model.Snapshot, address netip.Addr){
		"address of a node": func(s *model.Snapshot, address netip.Addr) {
			s.LBNodes = append(s.LBNodes, &millracev1beta1.LBNode{
				ObjectMeta: metav1.ObjectMeta{Name: "node3", UID: types.UID("node3")},
				Spec:       millracev1beta1.LBNodeSpec{ID: 3, Addresses: []string{address.String()}},
			})
		},
		"address of a router": func(s *model.Snapshot, address netip.Addr) {
			other := s.Peers[0].DeepCopy()
			other.Name, other.UID, other.Spec.Router.Address = "second", "second", address.String()
			s.Peers = append(s.Peers, other)
		},
		"address of a gateway": func(s *model.Snapshot, address netip.Addr) {
			s.Gateways = model.Gateways{millracev1beta1.FamilyIPv4: {address}}
		},
	} {
		for _, first := range []string{"VIP", "occupant"} {
			t.Run(fmt.Sprintf("%s, the %s first", name, first), func(t *testing.T) {
				n := newNode(t)
				objects := cluster()
				addService(objects, 1, false, 2, 2)
				addService(objects, 2, false, 2, 2)
				l := newLoop(n, objects)
				now := start
				expect := func(occupied bool) {
					t.Helper()
					for range 3 {
						mustPass(t, l, now)
						now = now.Add(time.Minute)
					}
					_, programmed := n.state.VIPs[vipOf(1)]
					if programmed == occupied || n.routes[vipOf(1)] == occupied {
						t.Errorf("programmed = %t, announced = %t", programmed, n.routes[vipOf(1)])
					}
					for key := range n.state.Frontends {
						if occupied && key.VIP == vipOf(1) {
							t.Errorf("%s is in the maps, want it removed", key)
						}
					}
					if _, programmed := n.state.VIPs[vipOf(2)]; !programmed || !n.routes[vipOf(2)] {
						t.Error("the other VIP is not served")
					}
					want := ""
					if occupied {
						want = announce.ReasonOccupied
					}
					for _, decision := range n.observation.Decisions {
						if decision.VIP == vipOf(1) && decision.Reason != want {
							t.Errorf("got %+v", decision)
						}
					}
				}
				free := *objects
				if first == "VIP" {
					expect(false)
				}
				occupy(objects, vipOf(1))
				expect(true)
				*objects = free
				expect(false)
			})
		}
	}
}
