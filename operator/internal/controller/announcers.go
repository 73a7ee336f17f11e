// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/nodes"
	"github.com/millrace-lb/millrace/operator/internal/validation"
)

// announcers tracks which nodes can announce VIPs of each family. As an event handler it enqueues the Services
// with addresses when a VIPAdvertisement gets its first node of a family or loses its last one. Results
// that flap are published with pauses, because each change may rewrite all Services.
type announcers struct {
	vips *vipCache
	now  func() time.Time

	mu       sync.Mutex
	nodes    map[string]announcer
	notReady int
	// configured are the families of LBPeers, by name.
	configured map[string]validation.Families
	// results caches the result for each advertisement, by name.
	results map[string]*advertisementQuery
	// queue is set before the first publishAnnouncersRequest.
	queue queue
}

// An announcer is a node, known by its Node, its LBNodeReport or both.
type announcer struct {
	exists, notReady bool
	labels           labels.Set
	// sessions are the families that the router accepts in established sessions, by LBPeer. The name anyPeer
	// means that the node has more sessions than its report lists.
	sessions map[string]validation.Families
}

func (n announcer) equal(other announcer) bool {
	return n.exists == other.exists && n.notReady == other.notReady &&
		labels.Equals(n.labels, other.labels) && maps.Equal(n.sessions, other.sessions)
}

type advertisementQuery struct {
	nodes labels.Selector
	// peers are sorted names; empty: all.
	peers []string
	l2    bool
	// current are the families of the nodes, published those in conditions.
	current, published validation.Families
	backoff            control.Backoff
}

func queryOf(advertisement *desired.Advertisement) *advertisementQuery {
	return &advertisementQuery{nodes: advertisement.Nodes, peers: advertisement.Peers, l2: advertisement.L2}
}

func (n *advertisementQuery) matches(advertisement *desired.Advertisement) bool {
	return n.l2 == advertisement.L2 && slices.Equal(n.peers, advertisement.Peers) && n.nodes.String() == advertisement.Nodes.String()
}

func newAnnouncers(l *vipCache) *announcers {
	return &announcers{
		vips: l, now: time.Now, nodes: map[string]announcer{}, configured: map[string]validation.Families{}, results: map[string]*advertisementQuery{},
	}
}

// families returns the families that any node can announce for an advertisement, as last published.
func (a *announcers) families(advertisement *desired.Advertisement) validation.Families {
	a.mu.Lock()
	defer a.mu.Unlock()
	known := a.results[advertisement.Name]
	if known == nil || !known.matches(advertisement) {
		known = queryOf(advertisement)
		known.current = a.familiesOfAll(known)
		known.published = known.current
		a.results[advertisement.Name] = known
	}
	return known.published
}

func (a *announcers) familiesOfAll(query *advertisementQuery) (able validation.Families) {
	for _, node := range a.nodes {
		if able = able.Or(a.familiesOfNode(query, node)); able == validation.BothFamilies {
			break
		}
	}
	return able
}

// familiesOfNode returns the families that a node can announce for an advertisement.
func (a *announcers) familiesOfNode(query *advertisementQuery, node announcer) (able validation.Families) {
	if !a.isUsable(node) || !query.nodes.Matches(node.labels) {
		return able
	}
	if query.l2 {
		// The LBNode, not this type, shows whether a node has a link in the network of the VIP.
		return validation.BothFamilies
	}
	for peer, families := range node.sessions {
		if len(query.peers) > 0 && peer != anyPeer && !slices.Contains(query.peers, peer) {
			continue
		}
		if configured, known := a.configured[peer]; known {
			families = families.And(configured)
		}
		able = able.Or(families)
	}
	return able
}

// isUsable reports whether a node announces according to its report. A report of a node that is not ready may
// be stale, but counts if most nodes are not ready: then the API server was unreachable.
func (a *announcers) isUsable(node announcer) bool {
	return node.exists && (!node.notReady || a.mostNotReady())
}

func (a *announcers) mostNotReady() bool { return 2*a.notReady > len(a.nodes) }

// change updates a node. It reports whether a published result changed, and returns the pause until the next
// change is due, or 0.
func (a *announcers) change(name string, change func(*announcer)) (changed bool, pause time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, most := a.nodes[name], a.mostNotReady()
	after := before
	change(&after)
	if before.equal(after) {
		return false, 0
	}
	lost := map[string]validation.Families{}
	for advertisement, known := range a.results {
		lost[advertisement] = a.familiesOfNode(known, before)
	}
	if before.notReady {
		a.notReady--
	}
	if after.notReady {
		a.notReady++
	}
	a.nodes[name] = after
	if !after.exists && len(after.sessions) == 0 {
		delete(a.nodes, name)
	}
	all := most != a.mostNotReady()
	for advertisement, known := range a.results {
		gained := a.familiesOfNode(known, after)
		if all || lost[advertisement].Or(gained) != gained {
			known.current = a.familiesOfAll(known)
		} else {
			known.current = known.current.Or(gained)
		}
	}
	return a.publish()
}

// configure sets the families of an LBPeer. The result is that of change.
func (a *announcers) configure(peer string, families validation.Families) (changed bool, pause time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if before, known := a.configured[peer]; known && before == families {
		return false, 0
	}
	a.configured[peer] = families
	for _, query := range a.results {
		query.current = a.familiesOfAll(query)
	}
	return a.publish()
}

// publish publishes the results whose pause is over. a.mu must be held.
func (a *announcers) publish() (changed bool, pause time.Duration) {
	now := a.now()
	for _, known := range a.results {
		if known.current == known.published {
			continue
		}
		if wait := known.backoff.Wait(now); wait > 0 {
			if pause == 0 || wait < pause {
				pause = wait
			}
			continue
		}
		known.published, changed = known.current, true
		known.backoff.RecordWrite(now)
	}
	return changed, pause
}

// publishAnnouncersRequest is a request without a namespace that makes a worker publish results after their
// pause.
var publishAnnouncersRequest = reconcile.Request{NamespacedName: types.NamespacedName{Name: "announcers"}}

// publishDue publishes the results whose pause is over, and returns the pause of others, or 0.
func (a *announcers) publishDue() time.Duration {
	a.mu.Lock()
	changed, pause := a.publish()
	q := a.queue
	a.mu.Unlock()
	if changed {
		enqueueServed(a.vips, q)
	}
	return pause
}

func (a *announcers) enqueue(q queue, changed bool, pause time.Duration) {
	if changed {
		enqueueServed(a.vips, q)
	}
	if pause > 0 {
		a.mu.Lock()
		a.queue = q
		a.mu.Unlock()
		q.AddAfter(publishAnnouncersRequest, pause)
	}
}

// events returns an event handler that updates the node by read or, after a deletion, by gone.
func (a *announcers) events(read func(client.Object, *announcer), gone func(*announcer)) handler.EventHandler {
	note := func(q queue, object client.Object, change func(*announcer)) {
		changed, pause := a.change(object.GetName(), change)
		a.enqueue(q, changed, pause)
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
		node.sessions = sessionsOf(object.(*millracev1beta1.LBNodeReport))
	}, func(node *announcer) { node.sessions = nil })
}

// ofPeers ignores deleted and invalid LBPeers: reports show whether agents retain their sessions.
func (a *announcers) ofPeers() handler.EventHandler {
	update := func(q queue, object client.Object) {
		if peer, problems := desired.ParsePeer(object.(*millracev1beta1.LBPeer)); len(problems) == 0 {
			changed, pause := a.configure(peer.Name, familiesOf(&peer))
			a.enqueue(q, changed, pause)
		}
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { update(q, e.Object) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) { update(q, e.ObjectNew) },
	}
}

func familiesOf(peer *desired.Peer) validation.Families {
	return validation.Families{IPv4: peer.IPv4, IPv6: peer.IPv6}
}

// sessionsOf returns the families of a node's established sessions, by LBPeer.
func sessionsOf(report *millracev1beta1.LBNodeReport) map[string]validation.Families {
	var sessions map[string]validation.Families
	for i := range report.Status.Sessions {
		session := &report.Status.Sessions[i]
		if session.State != millracev1beta1.SessionEstablished {
			continue
		}
		if sessions == nil {
			sessions = map[string]validation.Families{}
		}
		// A router of a range follows the LBPeer's name.
		peer, _, _ := strings.Cut(session.Peer, "/")
		sessions[peer] = sessions[peer].Or(validation.Families{
			IPv4: !slices.Contains(session.Withheld, millracev1beta1.FamilyIPv4),
			IPv6: !slices.Contains(session.Withheld, millracev1beta1.FamilyIPv6),
		})
	}
	return sessions
}
