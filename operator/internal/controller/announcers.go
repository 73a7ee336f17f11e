// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/nodes"
)

// announcers counts the nodes that can announce VIPs. As an event handler it enqueues the Services with
// addresses when a VIPAdvertisement gets its first such node or loses its last one.
type announcers struct {
	ledger *ledger

	mu       sync.Mutex
	nodes    map[string]announcer
	notReady int
	// asked caches the result for each advertisement, by name.
	asked map[string]announced
}

// An announcer is a node, known by its Node, its LBNodeReport or both.
type announcer struct {
	exists bool
	labels labels.Set
	// established and notReady are states of the node's BGP sessions and of the node.
	established, notReady bool
}

func (n announcer) equal(other announcer) bool {
	return n.exists == other.exists && n.established == other.established && n.notReady == other.notReady &&
		labels.Equals(n.labels, other.labels)
}

type announced struct {
	nodes labels.Selector
	l2    bool
	able  bool
}

func newAnnouncers(l *ledger) *announcers {
	return &announcers{ledger: l, nodes: map[string]announcer{}, asked: map[string]announced{}}
}

// able reports whether any node can announce for an advertisement.
func (a *announcers) able(advertisement desired.Advertisement) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	known, ok := a.asked[advertisement.Name]
	if !ok || known.l2 != advertisement.L2 || known.nodes.String() != advertisement.Nodes.String() {
		known = announced{nodes: advertisement.Nodes, l2: advertisement.L2}
		known.able = a.anyFor(&known)
		a.asked[advertisement.Name] = known
	}
	return known.able
}

func (a *announcers) anyFor(asked *announced) bool {
	for _, node := range a.nodes {
		// The LBNode, not this type, shows whether a node has a link in the network of the VIP.
		node.established = node.established || asked.l2
		if a.can(node) && asked.nodes.Matches(node.labels) {
			return true
		}
	}
	return false
}

// can reports whether a node announces according to its report. A report of a node that is not ready may be
// stale, but counts if most nodes are not ready: then the API server was unreachable.
func (a *announcers) can(node announcer) bool {
	return node.established && node.exists && (!node.notReady || a.mostNotReady())
}

func (a *announcers) mostNotReady() bool { return 2*a.notReady > len(a.nodes) }

func (a *announcers) change(name string, change func(*announcer)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, most := a.nodes[name], a.mostNotReady()
	after := before
	change(&after)
	if before.equal(after) {
		return false
	}
	if before.notReady {
		a.notReady--
	}
	if after.notReady {
		a.notReady++
	}
	a.nodes[name] = after
	if !after.exists && !after.established {
		delete(a.nodes, name)
	}
	return a.review(before, after, most != a.mostNotReady())
}

// review recomputes the results that a node's change may affect, or all results if all is true.
func (a *announcers) review(before, after announcer, all bool) (changed bool) {
	for name, known := range a.asked {
		concerns := all || known.l2 || !known.able && a.can(after) || known.able && before.established
		if !concerns {
			continue
		}
		if able := a.anyFor(&known); able != known.able {
			known.able, changed = able, true
			a.asked[name] = known
		}
	}
	return changed
}

// events returns an event handler that updates the node by read or, after a deletion, by gone.
func (a *announcers) events(read func(client.Object, *announcer), gone func(*announcer)) handler.EventHandler {
	note := func(q queue, object client.Object, change func(*announcer)) {
		if a.change(object.GetName(), change) {
			enqueueServed(a.ledger, q)
		}
	}
	update := func(q queue, object client.Object) {
		note(q, object, func(node *announcer) { read(object, node) })
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { update(q, e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { update(q, e.ObjectNew) },
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { note(q, e.Object, gone) },
	}
}

func (a *announcers) ofNodes() handler.EventHandler {
	return a.events(func(object client.Object, node *announcer) {
		node.exists, node.labels = true, object.GetLabels()
		node.notReady = nodes.NotReady(object.(*corev1.Node)) != nil
	}, func(node *announcer) { node.exists, node.labels, node.notReady = false, nil, false })
}

func (a *announcers) ofReports() handler.EventHandler {
	return a.events(func(object client.Object, node *announcer) {
		node.established = slices.ContainsFunc(object.(*millracev1beta1.LBNodeReport).Status.Sessions, isEstablished)
	}, func(node *announcer) { node.established = false })
}

func isEstablished(session millracev1beta1.SessionStatus) bool {
	return session.State == millracev1beta1.SessionEstablished
}

// maxSessions is the maximum number of sessions in an LBNodeReport. Established sessions come last.
const maxSessions = 64

// If the list is full, established sessions may have been cut off.
func oneEstablished(sessions []millracev1beta1.SessionStatus) []millracev1beta1.SessionStatus {
	if len(sessions) >= maxSessions || slices.ContainsFunc(sessions, isEstablished) {
		return []millracev1beta1.SessionStatus{{State: millracev1beta1.SessionEstablished}}
	}
	return nil
}
