// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func advertisementFor(name string, nodes map[string]string) desired.Advertisement {
	return desired.Advertisement{Name: name, Nodes: labels.SelectorFromSet(nodes)}
}

// Results equal those of a scan of all nodes, and each change of a result is reported.
func TestAnnouncersAnswer(t *testing.T) {
	advertisements := []desired.Advertisement{
		advertisementFor("all", nil), advertisementFor("edge", map[string]string{"role": "edge"}), advertisementFor("core", map[string]string{"role": "core"}),
		advertisementFor("links", nil),
	}
	advertisements[3].L2 = true
	rapid.Check(t, func(t *rapid.T) {
		a, nodes := newAnnouncers(newLedger()), map[string]announcer{}
		reference := func(advertisement desired.Advertisement) bool {
			total, notReady := 0, 0
			for _, node := range nodes {
				if node.exists || node.established {
					total++
				}
				if node.notReady {
					notReady++
				}
			}
			for _, node := range nodes {
				if node.exists && (node.established || advertisement.L2) && advertisement.Nodes.Matches(node.labels) && (!node.notReady || 2*notReady > total) {
					return true
				}
			}
			return false
		}
		ask := func() (answers []bool) {
			for _, advertisement := range advertisements {
				answers = append(answers, a.able(advertisement))
			}
			return answers
		}
		before := ask()
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			name := fmt.Sprintf("n%d", rapid.IntRange(0, 4).Draw(t, "node"))
			node := nodes[name]
			switch rapid.IntRange(0, 3).Draw(t, "change") {
			case 0:
				node.exists, node.labels = true, labels.Set{"role": rapid.SampledFrom([]string{"edge", "core"}).Draw(t, "role")}
			case 1:
				node.exists, node.labels, node.notReady = false, nil, false
			case 2:
				node.established = !node.established
			case 3:
				node.notReady = node.exists && !node.notReady
			}
			nodes[name] = node
			changed := a.change(name, func(n *announcer) { *n = node })
			after := ask()
			for i, advertisement := range advertisements {
				if want := reference(advertisement); after[i] != want {
					t.Fatalf("%s: %v, want %v of %+v", advertisement.Name, after[i], want, nodes)
				}
				if after[i] != before[i] && !changed {
					t.Fatalf("%s changed unsaid", advertisement.Name)
				}
			}
			before = after
		}
	})
}

// The condition Served changes when the last node that could announce the address loses its session.
func TestServedKnowsWhenNoNodeAnnounces(t *testing.T) {
	c := newCluster(t, poolOf(millracev1beta1.ReclaimDelete), ours("web", nil), advertiseAll())
	c.reconcile("web")
	c.expect("web", millracev1beta1.ConditionServed, "True Served ")
	session := func(established bool) {
		t.Helper()
		if !c.reconciler.announcers.change("node", func(node *announcer) { node.established = established }) {
			t.Error("no Service is looked at")
		}
		c.reconcile("web")
	}
	session(false)
	none := "no node selected by VIPAdvertisement all has an established BGP session, so no node announces 203.0.113.0"
	c.expect("web", millracev1beta1.ConditionServed, "False NotAnnounced "+none, "Warning NotAnnounced "+none)
	session(true)
	c.expect("web", millracev1beta1.ConditionServed, "True Served ", "Normal Served all that the Service requests is served")
}

func TestStrippedReportTellsOfASession(t *testing.T) {
	idle := millracev1beta1.SessionStatus{Peer: "a", State: millracev1beta1.SessionIdle}
	up := millracev1beta1.SessionStatus{Peer: "b", State: millracev1beta1.SessionEstablished}
	for want, sessions := range map[bool][]millracev1beta1.SessionStatus{false: {idle}, true: {idle, up}} {
		report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
		report.Status.Sessions = sessions
		stripped, err := TransformReport(report)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(stripped.(*millracev1beta1.LBNodeReport).Status.Sessions) > 0; got != want {
			t.Errorf("%+v: %v", sessions, got)
		}
	}
}
