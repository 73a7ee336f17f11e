// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/status"
)

// After a boot, a node with some permanently failing writes receives traffic from other nodes, and a node
// that cannot forward does not.
func TestFailingWritesAfterBoot(t *testing.T) {
	never := func(string) bool { return false }
	var table forwarding.NodeTableSlot
	for name, test := range map[string]struct {
		fails   func(what string) bool
		refuses func(op forwarding.Op) bool
		want    bool
	}{
		"one frontend": {fails: never, want: true, refuses: func(op forwarding.Op) bool {
			put, is := op.(forwarding.PutFrontend)
			return is && put.Key.VIP == vipOf(2)
		}},
		"one VIP": {fails: never, want: true, refuses: func(op forwarding.Op) bool {
			put, is := op.(forwarding.PutVIP)
			return is && put.Address == vipOf(2)
		}},
		"one table": {fails: never, want: true, refuses: func(op forwarding.Op) bool {
			put, is := op.(forwarding.PutRows)
			if is && table == 0 {
				table = put.Slot
			}
			return is && put.Slot == table
		}},
		"all frontends":        {fails: func(what string) bool { return what == "PutFrontend" }},
		"all VIPs":             {fails: func(what string) bool { return what == "PutVIP" }},
		"the node's own entry": {fails: func(what string) bool { return what == "SetSelf" }},
		"the other nodes":      {fails: func(what string) bool { return what == "PutNode" }},
		"one write and the following read": {fails: func(what string) bool {
			return what == "PutFrontend" || what == "Dump"
		}},
		"attaching": {fails: func(what string) bool { return what == "Attach" }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				objects := cluster()
				addService(objects, 1, false, 1, 1)
				addService(objects, 2, false, 1, 1)
				l := newLoop(n, objects)
				n.fails = test.fails
				if test.refuses != nil {
					n.refuses = test.refuses
				}
				boots := writtenBoots(t, l, func() {
					for i := range 3 {
						if _, err := l.pass(start.Add(time.Duration(i) * testDelay)); !errors.Is(err, errInjected) {
							t.Fatalf("error %v, want the injected error", err)
						}
						time.Sleep(time.Minute)
					}
				})
				want := millracev1beta1.LBNodeStatus{BootID: "now", ServingBootID: "before"}
				if test.want {
					want.ServingBootID = "now"
				}
				if !reflect.DeepEqual(boots, want) {
					t.Errorf("LBNode = %+v, want %+v", boots, want)
				}
			})
		})
	}
}

// writtenBoots runs the agent's Writer for a node after a boot, and returns the resulting LBNode status.
func writtenBoots(t *testing.T, l *loop, passes func()) millracev1beta1.LBNodeStatus {
	t.Helper()
	lbNode := &millracev1beta1.LBNode{Status: millracev1beta1.LBNodeStatus{BootID: "before", ServingBootID: "before"}}
	writer := status.NewWriter("now",
		status.Target[*millracev1beta1.LBNode]{
			Observed: func() *millracev1beta1.LBNode { return lbNode },
			Update: func(_ context.Context, changed *millracev1beta1.LBNode) (*millracev1beta1.LBNode, error) {
				lbNode = changed
				return changed, nil
			},
		},
		status.Target[*millracev1beta1.LBNodeReport]{
			Observed: func() *millracev1beta1.LBNodeReport { return nil },
		}, logr.Discard())
	l.status = writer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- writer.Run(ctx) }()
	passes()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the Writer returned %v, want context.Canceled", err)
	}
	return lbNode.Status
}
