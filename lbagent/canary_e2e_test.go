// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lbagent

import (
	"context"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/millrace-lb/millrace/api/canary"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

const (
	canaryAddress = "203.0.113.250"
	toldWithin    = 10 * time.Second
)

func (w *world) verdict() canary.Verdict {
	w.t.Helper()
	reports, nodes := &millracev1beta1.LBNodeReportList{}, &millracev1beta1.LBNodeList{}
	for _, list := range []client.ObjectList{reports, nodes} {
		if err := w.client.List(context.Background(), list); err != nil {
			w.t.Fatal(err)
		}
	}
	verdicts := canary.Judge(reports.Items, canary.IDs(nodes.Items))
	if len(verdicts) != 1 {
		return canary.Verdict{}
	}
	return verdicts[0]
}

// prove configures the router's ECMP hash to use ports, and the canary of its LBPeer.
func (w *world) prove() {
	w.t.Helper()
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("verdict of the reports: %+v", w.verdict())
		}
	})
	run(w.t, "ip netns exec "+routerSpace+" sysctl -qw net.ipv4.ip_forward=1 net.ipv4.fib_multipath_hash_policy=1")
	run(w.t, "ip netns exec "+routerSpace+" nft add chain bridge filter output { type filter hook output priority 0 ; }")
	peer := &millracev1beta1.LBPeer{}
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: "router"}, peer); err != nil {
		w.t.Fatal(err)
	}
	peer.Spec.Canaries = []string{canaryAddress}
	if err := w.client.Update(w.t.Context(), peer); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) awaitProof() {
	w.t.Helper()
	w.Await(90*time.Second, "all nodes reached through the router", func() bool {
		verdict := w.verdict()
		return verdict.OK() && len(verdict.Nodes) == 3 && !slices.ContainsFunc(verdict.Nodes, func(n canary.Node) bool {
			return !n.Announces || n.ReachedBy != 2 || n.Unanswered == nil || *n.Unanswered > 0
		})
	})
}

// loseFromRouter configures the switch to drop packets from the router to the third node.
func (w *world) loseFromRouter(packets string) {
	w.t.Helper()
	run(w.t, "ip netns exec "+routerSpace+" nft add rule bridge filter output oifname port3 "+packets+" drop")
}

func (w *world) awaitVerdict(reason, node string) {
	w.t.Helper()
	begun := time.Now()
	w.Await(toldWithin, reason+" of "+node, func() bool {
		verdict := w.verdict()
		return verdict.Reason == reason && slices.ContainsFunc(verdict.Nodes, func(n canary.Node) bool {
			return n.Name == node && (n.ReachedBy == 0 || n.Short)
		})
	})
	w.t.Logf("%s of %s reported after %s", reason, node, time.Since(begun).Round(time.Millisecond))
}
