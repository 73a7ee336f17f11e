// SPDX-License-Identifier: Apache-2.0

package lbagent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

type end struct{ shutsDown, begun, withdrawn bool }

func (e *end) SetShutdown(shutsDown bool) { e.shutsDown = shutsDown }
func (e *end) HasBegun() bool             { return e.begun }
func (e *end) Withdrawn()                 { e.withdrawn = true }

// An uninstalled node withdraws a VIP without another announcer after the drain delay.
func TestUninstalledNodeWithdraws(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	objects.LBNodes = objects.LBNodes[:1]
	addService(objects, 1, false, 1, 0)
	l := newLoop(n, objects)
	ending := &end{}
	l.routes.Handover = ending
	mustPass(t, l, start)
	ending.begun = true
	if again := mustPass(t, l, start); !n.routes[vipOf(1)] || again == 0 || again > l.routes.DrainDelay {
		t.Errorf("routes = %v, next pass in %s", n.routes, again)
	}
	for _, routes := range n.want.Routes {
		if got := routes[0].Communities; len(got) != 1 || got[0] != 0xffff0000 {
			t.Errorf("communities = %x, want GRACEFUL_SHUTDOWN", got)
		}
	}
	if ending.withdrawn {
		t.Error("reported as withdrawn before the withdrawal")
	}
	mustPass(t, l, start.Add(l.routes.DrainDelay))
	if n.routes[vipOf(1)] || !ending.withdrawn {
		t.Errorf("routes = %v, reported as withdrawn = %t", n.routes, ending.withdrawn)
	}
	if len(n.state.Frontends) != 1 {
		t.Error("the maps no longer forward")
	}
}

// A node whose Node reports a shutdown departs, with or without an operator.
func TestNodeThatShutsDownDeparts(t *testing.T) {
	n := newNode(t)
	objects := cluster()
	addService(objects, 1, false, 1, 1)
	l := newLoop(n, objects)
	ending := &end{}
	l.routes.Handover = ending
	mustPass(t, l, start)
	objects.Node = objects.Node.DeepCopy()
	objects.Node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: "node is shutting down",
	}}
	mustPass(t, l, start)
	for _, routes := range n.want.Routes {
		if got := routes[0].Communities; len(got) != 1 || got[0] != 0xffff0000 {
			t.Errorf("communities = %x, want GRACEFUL_SHUTDOWN", got)
		}
	}
	if !n.routes[vipOf(1)] || !ending.shutsDown {
		t.Errorf("routes = %v, shutting down = %t", n.routes, ending.shutsDown)
	}
	mustPass(t, l, start.Add(l.routes.DrainDelay))
	if n.routes[vipOf(1)] || len(n.state.Frontends) != 1 {
		t.Errorf("routes = %v, %d frontends", n.routes, len(n.state.Frontends))
	}
	// A cordoned node waits for its LBNode, because other nodes must also see the change.
	objects.Node = objects.Node.DeepCopy()
	objects.Node.Status.Conditions = nil
	objects.Node.Spec.Unschedulable = true
	mustPass(t, l, start.Add(2*l.routes.DrainDelay))
	mustPass(t, l, start.Add(3*l.routes.DrainDelay))
	if !n.routes[vipOf(1)] || ending.shutsDown {
		t.Errorf("routes = %v, shutting down = %t", n.routes, ending.shutsDown)
	}
}
