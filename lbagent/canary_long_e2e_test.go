// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package lbagent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

const repairedWithin = 30 * time.Second

func (w *world) awaitReached() {
	w.t.Helper()
	w.Await(repairedWithin, "all nodes reached again", func() bool {
		verdict := w.verdict()
		return verdict.OK()
	})
}

// proving starts three nodes behind a router with a canary, and waits until all are reached.
func proving(t *testing.T) (w *world, third *agent) {
	t.Helper()
	w = newWorld(t)
	w.switched()
	w.install()
	w.populate()
	w.prove()
	kubeconfig := w.sharedKubeconfig()
	w.start()
	w.join(otherNode, 2, kubeconfig)
	third = w.join(thirdNode, 3, kubeconfig)
	w.awaitProof()
	return w, third
}

// Each fault of a router, or behind it, is reported within 10 s, and cleared after its repair.
func TestRouterFaultsAreReported(t *testing.T) {
	w, third := proving(t)
	const address = "198.51.100.4"

	w.Configure("ip prefix-list NOCANARY seq 5 deny "+canaryAddress+"/32", "ip prefix-list NOCANARY seq 10 permit any",
		"router bgp 64500", "address-family ipv4 unicast", "neighbor "+address+" prefix-list NOCANARY in")
	w.awaitVerdict(millracev1beta1.ReasonRouteMissing, thirdNode)
	w.Configure("router bgp 64500", "address-family ipv4 unicast", "no neighbor "+address+" prefix-list NOCANARY in")
	w.awaitReached()

	w.Configure("router bgp 64500", "address-family ipv4 unicast", "maximum-paths 1")
	w.Await(toldWithin, "fewer paths than nodes", func() bool {
		verdict := w.verdict()
		return verdict.Reason == millracev1beta1.ReasonRouteMissing
	})
	w.Configure("router bgp 64500", "address-family ipv4 unicast", "maximum-paths 64")
	w.awaitReached()

	w.loseFromRouter("ip daddr " + canaryAddress + " meta length 1000-65535")
	w.awaitVerdict(millracev1beta1.ReasonLargePacketsLost, thirdNode)
	run(t, "ip netns exec "+routerSpace+" nft flush chain bridge filter output")
	w.awaitReached()

	// Its programs are detached with the agent: its route is stale, and the router still uses it.
	if err := third.end(unix.SIGKILL); err == nil {
		t.Fatal("the agent exited without an error")
	}
	if err := os.RemoveAll(filepath.Join(filepath.Dir(w.pinRoot), thirdNode)); err != nil {
		t.Fatal(err)
	}
	w.awaitVerdict(millracev1beta1.ReasonPacketsLost, thirdNode)
}
