// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"maps"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/validation"
)

func advertisementFor(name string, nodes map[string]string) desired.Advertisement {
	return desired.Advertisement{Name: name, Nodes: labels.SelectorFromSet(nodes)}
}

// Results equal those of a scan of all nodes, and each change of a result is reported.
func TestAnnouncersReply(t *testing.T) {
	advertisements := []desired.Advertisement{
		advertisementFor("all", nil), advertisementFor("edge", map[string]string{"role": "edge"}), advertisementFor("core", map[string]string{"role": "core"}),
		advertisementFor("links", nil), advertisementFor("peer", nil),
	}
	advertisements[3].L2, advertisements[4].Peers = true, []string{"b"}
	configured := map[string]validation.Families{"a": validation.BothFamilies, "b": {IPv4: true}}
	rapid.Check(t, func(t *rapid.T) {
		a, nodes := newAnnouncers(newVIPCache()), map[string]announcer{}
		now := time.Unix(1000, 0)
		a.now = func() time.Time { return now }
		for peer, families := range configured {
			a.configure(peer, families)
		}
		before := answersOf(a, advertisements)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			// No result waits.
			now = now.Add(2 * control.MaxBackoff)
			name := fmt.Sprintf("n%d", rapid.IntRange(0, 4).Draw(t, "node"))
			nodes[name] = drawChange(t, nodes[name])
			changed, pause := a.change(name, func(n *announcer) { *n = nodes[name] })
			after := answersOf(a, advertisements)
			for i, advertisement := range advertisements {
				if want := scan(nodes, configured, advertisement); after[i] != want {
					t.Fatalf("%s: %v, want %v of %+v", advertisement.Name, after[i], want, nodes)
				}
				if after[i] != before[i] && !changed || pause != 0 {
					t.Fatalf("change of %s is not reported (pause %s)", advertisement.Name, pause)
				}
			}
			before = after
		}
	})
}

func answersOf(a *announcers, advertisements []desired.Advertisement) (answers []validation.Families) {
	for i := range advertisements {
		answers = append(answers, a.families(&advertisements[i]))
	}
	return answers
}

func drawChange(t *rapid.T, node announcer) announcer {
	switch rapid.IntRange(0, 3).Draw(t, "change") {
	case 0:
		node.exists, node.labels = true, labels.Set{"role": rapid.SampledFrom([]string{"edge", "core"}).Draw(t, "role")}
	case 1:
		node.exists, node.labels, node.notReady = false, nil, false
	case 2:
		sessions := map[string]validation.Families{}
		for _, peer := range []string{"a", "b", "unknown"} {
			if rapid.Bool().Draw(t, peer) {
				sessions[peer] = validation.Families{IPv4: rapid.Bool().Draw(t, "IPv4"), IPv6: rapid.Bool().Draw(t, "IPv6")}
			}
		}
		node.sessions = sessions
	case 3:
		node.notReady = node.exists && !node.notReady
	}
	return node
}

func scan(nodes map[string]announcer, configured map[string]validation.Families, advertisement desired.Advertisement) (able validation.Families) {
	total, notReady := 0, 0
	for _, node := range nodes {
		if node.exists || len(node.sessions) > 0 {
			total++
		}
		if node.notReady {
			notReady++
		}
	}
	for _, node := range nodes {
		if !node.exists || !advertisement.Nodes.Matches(node.labels) || node.notReady && 2*notReady <= total {
			continue
		}
		for peer, families := range node.sessions {
			known, found := configured[peer]
			if len(advertisement.Peers) == 0 || peer == advertisement.Peers[0] {
				able.IPv4 = able.IPv4 || families.IPv4 && (!found || known.IPv4)
				able.IPv6 = able.IPv6 || families.IPv6 && (!found || known.IPv6)
			}
		}
		if advertisement.L2 {
			able = validation.BothFamilies
		}
	}
	return able
}

// A flapping node changes no result while another node announces. Otherwise the result changes a few times
// with pauses, after which the last state is published.
func TestFlappingNode(t *testing.T) {
	for _, test := range []struct {
		name        string
		others      int
		least, most int
	}{{"another node announces", 1, 0, 0}, {"the only node", 0, 2, 12}} {
		t.Run(test.name, func(t *testing.T) {
			a, now := newAnnouncers(newVIPCache()), time.Unix(1000, 0)
			a.now = func() time.Time { return now }
			up := map[string]validation.Families{"router": validation.BothFamilies}
			for i := range 1 + test.others {
				a.change(fmt.Sprintf("n%d", i), func(n *announcer) { n.exists, n.sessions = true, up })
			}
			all := advertisementFor("all", nil)
			a.families(&all)
			changes := 0
			count := func(changed bool, pause time.Duration) time.Duration {
				if changed {
					changes++
				}
				return pause
			}
			for range 100 {
				for _, sessions := range []map[string]validation.Families{nil, up} {
					now = now.Add(3 * time.Second)
					count(a.change("n0", func(n *announcer) { n.sessions = sessions }))
					count(a.publish())
				}
			}
			now = now.Add(time.Second)
			pause := count(a.change("n0", func(n *announcer) { n.sessions = nil }))
			now = now.Add(pause)
			if pause = count(a.publish()); pause != 0 || a.families(&all).IPv4 != (test.others > 0) {
				t.Errorf("after the pause: published %v, next pause %s", a.families(&all), pause)
			}
			if changes < test.least || changes > test.most {
				t.Errorf("%d published changes, want %d to %d", changes, test.least, test.most)
			}
		})
	}
}

// The conditions change when the last node that could announce an address of a family loses its session.
func TestServedWithoutAnnouncer(t *testing.T) {
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil), advertiseAll())
	c.reconcile("web")
	c.expect("web", millracev1beta1.ConditionServed, "True Served ")
	c.expect("web", millracev1beta1.ConditionServiceAnnounced, "True Announced announced: IPv4")
	now := time.Now()
	c.reconciler.announcers.now = func() time.Time { return now }
	session := func(families validation.Families) {
		t.Helper()
		now = now.Add(time.Hour)
		changed, _ := c.reconciler.announcers.change("node", func(node *announcer) {
			node.sessions = map[string]validation.Families{"router": families}
		})
		if !changed {
			t.Error("no Service is reconciled")
		}
		c.reconcile("web")
	}
	none := "no node selected by VIPAdvertisement all has an established BGP session that carries IPv4 routes, so no node announces 203.0.113.0"
	session(validation.Families{IPv6: true})
	c.expect("web", millracev1beta1.ConditionServed, "False NotAnnounced "+none, "Warning NotAnnounced "+none)
	c.expect("web", millracev1beta1.ConditionServiceAnnounced, "False NotAnnounced IPv4: "+none)
	session(validation.Families{IPv4: true})
	c.expect("web", millracev1beta1.ConditionServed, "True Served ", "Normal Served all that the Service requests is served")
	c.expect("web", millracev1beta1.ConditionServiceAnnounced, "True Announced announced: IPv4")
}

func TestFamiliesOfSessions(t *testing.T) {
	up, v4 := millracev1beta1.SessionEstablished, []millracev1beta1.AddressFamily{millracev1beta1.FamilyIPv4}
	full := make([]millracev1beta1.SessionStatus, maxSessions)
	for _, test := range []struct {
		name     string
		sessions []millracev1beta1.SessionStatus
		want     map[string]validation.Families
	}{
		{"none", nil, nil},
		{"not established", []millracev1beta1.SessionStatus{{Peer: "a", State: millracev1beta1.SessionActive}}, nil},
		{"a family withheld", []millracev1beta1.SessionStatus{{Peer: "a"}, {Peer: "b", State: up, Withheld: v4}},
			map[string]validation.Families{"b": {IPv6: true}}},
		{"routers of a range", []millracev1beta1.SessionStatus{{Peer: "a/198.51.100.1", State: up, Withheld: v4}, {Peer: "a/198.51.100.2", State: up}},
			map[string]validation.Families{"a": validation.BothFamilies}},
		{"a full list", full, map[string]validation.Families{anyPeer: validation.BothFamilies}},
	} {
		t.Run(test.name, func(t *testing.T) {
			report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
			report.Status.Sessions = test.sessions
			stripped, err := TransformReport(report)
			if err != nil {
				t.Fatal(err)
			}
			if got := sessionsOf(stripped.(*millracev1beta1.LBNodeReport)); !maps.Equal(got, test.want) {
				t.Errorf("sessionsOf = %v, want %v", got, test.want)
			}
		})
	}
}
