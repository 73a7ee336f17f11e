// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/announce"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// wantBGP returns the desired state of the speaker. A node without an address has no BGP identifier and
// nothing to announce.
func wantBGP(m *model.Model, routes announce.Routes, passwords map[string]string) bgp.Want {
	id := bgp.RouterID(m.Self.IPv4, m.Self.IPv6)
	if !id.IsValid() {
		return bgp.Want{}
	}
	want := bgp.Want{RouterID: id, Peers: m.Peers, Ranges: m.Ranges, Routes: routes, Passwords: passwords, Turn: map[string]time.Duration{}}
	nodes := make([]forwarding.NodeID, 0, len(m.Nodes))
	for i := range m.Nodes {
		nodes = append(nodes, m.Nodes[i].ID)
	}
	for i := range m.Peers {
		want.Turn[m.Peers[i].Name] = bgp.Turn(m.Peers[i].Name, m.Self.ID, nodes)
	}
	return want
}

// announced returns the VIPs with a route to a peer or on a link.
func announced(decisions []announce.Decision, prefixes *announce.Prefixes) map[netip.Addr]bool {
	has := make(map[netip.Addr]bool, len(decisions))
	for i := range decisions {
		vip := decisions[i].VIP
		has[vip] = prefixes.Has(vip) || len(decisions[i].Interfaces) > 0
	}
	return has
}

// Adopted returns the VIPs that the previous agent may have announced: the ones with a frontend in its
// maps.
func Adopted(have *forwarding.State) map[netip.Addr]bool {
	vips := map[netip.Addr]bool{}
	for key := range have.Frontends {
		vips[key.VIP] = true
	}
	return vips
}

// Sessions returns the sessions with routers for the report.
func (a *Announcer) Sessions(m *model.Model) []millracev1beta1.SessionStatus {
	observed := a.Speaker.Sessions()
	statuses := make([]millracev1beta1.SessionStatus, 0, len(observed))
	for _, session := range observed {
		status := millracev1beta1.SessionStatus{
			Peer:     session.Peer,
			Address:  session.Address.String(),
			State:    session.State,
			Withheld: session.Withheld,
			Message:  session.Message,
		}
		if !session.Since.IsZero() {
			// The API stores seconds, and the statuses are compared.
			since := metav1.NewTime(session.Since).Rfc3339Copy()
			status.Since = &since
		}
		withhold(m, &status)
		statuses = append(statuses, status)
	}
	return statuses
}

// withhold adds the families without a next hop to an established session, so that the operator does not
// count this node among those that can announce VIPs of these families.
func withhold(m *model.Model, session *millracev1beta1.SessionStatus) {
	at, found := slices.BinarySearchFunc(m.Peers, session.Peer, func(peer model.Peer, name string) int { return cmp.Compare(peer.Name, name) })
	if !found || session.State != millracev1beta1.SessionEstablished {
		return
	}
	for _, family := range announce.WithoutNextHop(m, &m.Peers[at]) {
		if slices.Contains(session.Withheld, family) {
			continue
		}
		session.Withheld = append(slices.Clone(session.Withheld), family)
		why := fmt.Sprintf("%s routes are withheld: neither the LBNode of this node nor an interface to the router has a next hop for them", family)
		session.Message = strings.Join(slices.DeleteFunc([]string{session.Message, why}, func(part string) bool { return part == "" }), "; ")
	}
}
