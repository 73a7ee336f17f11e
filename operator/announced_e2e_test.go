// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// announced waits for a condition, "STATUS REASON MESSAGE" or "" if it is absent. The message is its beginning.
func (e *environment) announced(t *testing.T, object client.Object, conditions *[]metav1.Condition, kind, want string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, object); err != nil {
			return err
		}
		got := ""
		if found := meta.FindStatusCondition(*conditions, kind); found != nil {
			got = fmt.Sprintf("%s %s %s", found.Status, found.Reason, found.Message)
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			return fmt.Errorf("condition of %T %s = %q, want %q", object, object.GetName(), got, want)
		}
		return nil
	})
}

func (e *environment) sessionCounts(t *testing.T, peer *millracev1beta1.LBPeer, established, wanted int32) {
	t.Helper()
	want := millracev1beta1.SessionCounts{Established: established, Desired: wanted}
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, peer); err != nil {
			return err
		}
		if got := peer.Status.Sessions; got == nil || *got != want {
			return fmt.Errorf("sessions of LBPeer %s = %+v, want %+v", peer.Name, got, want)
		}
		return nil
	})
}

// announcedByFamily checks that conditions report each family, and the flap of one node of two causes no
// write to Services or VIPs.
func announcedByFamily(t *testing.T, e *environment) {
	e.run(t)
	peer := &millracev1beta1.LBPeer{
		ObjectMeta: metav1.ObjectMeta{Name: "router"},
		Spec:       millracev1beta1.LBPeerSpec{Router: millracev1beta1.Router{Address: "198.51.100.254"}, PeerASN: 64512, LocalASN: 64513},
	}
	must(t, e.client.Create(t.Context(), peer))
	e.session(t, "announcing", millracev1beta1.SessionEstablished)
	e.sessionCounts(t, peer, 1, 1)
	pool := e.pool(t, "main", nil, "203.0.113.0/24", "2001:db8:cafe::/64")
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, pool); err != nil || pool.Status.FreeDisplay != "2^53" {
			return fmt.Errorf("FreeDisplay = %q: %w", pool.Status.FreeDisplay, err)
		}
		return nil
	})
	e.advertisement(t, "all", nil)
	service := e.service(t, "web", families(corev1.IPFamilyPolicyRequireDualStack, corev1.IPv4Protocol, corev1.IPv6Protocol))
	const ofService, ofVIP = millracev1beta1.ConditionServiceAnnounced, millracev1beta1.ConditionAnnounced
	const no = "no node selected by VIPAdvertisement all has an established BGP session that carries "
	e.announced(t, service, &service.Status.Conditions, ofService, "False NotAnnounced announced: IPv4; IPv6: "+no+"IPv6 routes")
	e.served(t, service, metav1.ConditionFalse, millracev1beta1.ReasonNotAnnounced, no+"IPv6 routes")
	vip := func(address netip.Addr) *millracev1beta1.VIP {
		return &millracev1beta1.VIP{ObjectMeta: metav1.ObjectMeta{Name: millracev1beta1.VIPName(address)}}
	}
	v4, v6 := vip(netip.MustParseAddr("203.0.113.0")), vip(netip.MustParseAddr("2001:db8:cafe::"))
	e.announced(t, v6, &v6.Status.Conditions, ofVIP, "False NotAnnounced "+no+"IPv6 routes")
	e.announced(t, v4, &v4.Status.Conditions, ofVIP, "")

	update(t, e, peer, func(peer *millracev1beta1.LBPeer) {
		peer.Spec.Families = []millracev1beta1.AddressFamily{millracev1beta1.FamilyIPv4, millracev1beta1.FamilyIPv6}
	})
	e.announced(t, service, &service.Status.Conditions, ofService, "True Announced announced: IPv4, IPv6")
	e.announced(t, v6, &v6.Status.Conditions, ofVIP, "True Announced")

	e.session(t, "flapping", millracev1beta1.SessionIdle)
	e.sessionCounts(t, peer, 1, 2)
	before := e.writesOfServices(t)
	for range 100 {
		e.session(t, "flapping", millracev1beta1.SessionEstablished)
		e.session(t, "flapping", millracev1beta1.SessionIdle)
	}
	writes := e.writesOfServices(t)[len(before):]
	others := slices.DeleteFunc(slices.Clone(writes), func(write string) bool { return write == "patch lbpeers/status" })
	if len(others) > 0 || len(writes) > 10 {
		t.Errorf("writes caused by a flapping node: %q", writes)
	}

	e.session(t, "announcing", millracev1beta1.SessionIdle)
	e.announced(t, service, &service.Status.Conditions, ofService, "False NotAnnounced IPv4: "+no+"IPv4 routes, so no node announces 203.0.113.0; IPv6: ")
	e.announced(t, v4, &v4.Status.Conditions, ofVIP, "False NotAnnounced "+no+"IPv4 routes")
	update(t, e, service, toClusterIP)
	e.bare(t, service)
}
