// SPDX-License-Identifier: Apache-2.0

package fib

import (
	"maps"
	"reflect"
	"testing"

	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func TestUpTargets(t *testing.T) {
	self := forwarding.Self{IPv4: self4}
	nodes := map[forwarding.NodeID]forwarding.Node{1: {IPv4: near4}, 2: {IPv4: far4}}
	var up UpTargets
	first := up.Of(self, nodes)
	if want := Targets(self, nodes); !maps.Equal(first, want) {
		t.Fatalf("targets %v, want %v", first, want)
	}
	if again := up.Of(self, maps.Clone(nodes)); reflect.ValueOf(again).Pointer() != reflect.ValueOf(first).Pointer() {
		t.Error("targets were recomputed without a change")
	}
	down := maps.Clone(nodes)
	down[2] = forwarding.Node{IPv4: far4, Down: true}
	if got := up.Of(self, down); len(got) != 1 || got[1].Destination != near4 {
		t.Errorf("targets = %v, want none for the down node", got)
	}
	if !maps.Equal(up.Of(self, nodes), first) {
		t.Error("the recovered node has no target")
	}
}
