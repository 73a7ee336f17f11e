// SPDX-License-Identifier: Apache-2.0

package route

import (
	"maps"
	"slices"
	"sort"

	"google.golang.org/protobuf/proto"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// The default bounds of what proxies get, in bytes of messages. A proxy reads 512 MiB at once at
// most, and its memory grows with what it has.
const (
	defaultNamespaceBytes = 64 << 20
	defaultProxyBytes     = 256 << 20
)

const (
	// entryBytes are for a host or a listener, beside what is written into it.
	entryBytes = 128
	// pathBytes are for a path of an Ingress, beside its own bytes and the names in it.
	pathBytes = 64
	// reserveParts divides the room of a namespace: one part more is the reserve for rules that close the
	// paths of protecting objects without room.
	reserveParts = 4
	// unreadTimes is how much more than its room a namespace may have in routes that are read at
	// all: to read them takes time of all others.
	unreadTimes = 2
)

// budget is the room of namespaces in the configuration of one proxy. A Gateway's own listeners,
// and what a class has, do not count: their author decides on all others.
type budget struct {
	// most is what one namespace may use.
	most int64
	// fixed is what a namespace uses whatever becomes of its routes, used what it uses with them.
	fixed, used map[string]int64
	// reserve is the room of each namespace for closed paths, closing the part that is in use.
	reserve int64
	closing map[string]int64
	// closed are the namespaces whose reserve is used: nothing of them is served.
	closed map[string]bool
}

func newBudget(most int64) *budget {
	return &budget{
		most: most, fixed: map[string]int64{}, used: map[string]int64{},
		reserve: most / reserveParts, closing: map[string]int64{}, closed: map[string]bool{},
	}
}

// closeWith takes room of the reserve. Without room the namespace is closed, because its other objects
// could serve requests that the object keeps out.
func (b *budget) closeWith(namespace string, bytes int64) bool {
	if b.closing[namespace] += bytes; b.closing[namespace] > b.reserve {
		b.closed[namespace] = true
	}
	return !b.closed[namespace]
}

// take takes room for a namespace, where it has some.
func (b *budget) take(namespace string, bytes int64) bool {
	if b.used[namespace]+bytes > b.most {
		return false
	}
	b.used[namespace] += bytes
	return true
}

// fix makes what is used until now fixed.
func (b *budget) fix() { b.fixed = maps.Clone(b.used) }

// again makes room for routes again.
func (b *budget) again() {
	b.used = maps.Clone(b.fixed)
	clear(b.closing)
	clear(b.closed)
}

// share lowers what one namespace may use, so that all use no more than total, and reports whether
// that was needed. Namespaces get room in turn: the one that uses little keeps what it has.
func (b *budget) share(total int64) bool {
	sum := func(most int64) (all int64) {
		for namespace, bytes := range b.used {
			all += max(b.fixed[namespace], min(bytes, most))
		}
		return all
	}
	if sum(b.most) <= total {
		return false
	}
	// The first that is too much, less one.
	b.most = max(int64(sort.Search(int(b.most), func(most int) bool { return sum(int64(most)) > total }))-1, 0)
	return true
}

// noRoom tells that a namespace has no room for an object. The text has no sum of a moment: each change of
// an older object, which anybody makes a hundred times a second, would write the statuses of all that have
// no room.
func (s *Settings) noRoom(field, namespace string) *refusal {
	return refuse(ReasonNoRoom, ReasonNoRoom,
		"%s: older objects of namespace %s use its room in the configuration of these proxies: %d bytes, "+
			"and less where all namespaces want more than %d; delete or shorten some of them, or give "+
			"more by --namespace-configuration and --proxy-configuration of the gateway",
		field, namespace, s.NamespaceBytes, s.ProxyBytes)
}

// rulesBytes is how long rules are on the wire.
func rulesBytes(rules []*orderedRule) (bytes int64) {
	for _, each := range rules {
		bytes += int64(proto.Size(each.rule))
	}
	return bytes
}

// certificateBytes is how long a certificate is on the wire.
func certificateBytes(of *certificate) int64 {
	found := of.resource.GetCertificate()
	return int64(len(found.GetChain()) + len(found.GetKey()))
}

// counted notes certificates that count already.
type counted map[*resource.Resource]bool

// bytes are those of the certificates that did not count before.
func (c counted) bytes(certificates []*certificate) (bytes int64) {
	for _, each := range certificates {
		if !c[each.resource] {
			c[each.resource] = true
			bytes += certificateBytes(each)
		}
	}
	return bytes
}

// admitListener takes room for a listener of a ListenerSet, or refuses it.
func (g *gateway) admitListener(of *listener, settings *Settings) {
	if of.accepted != nil {
		return
	}
	bytes := entryBytes + g.certificates.bytes(of.certificates)
	if namespace := of.owner.GetNamespace(); !g.room.take(namespace, bytes) {
		of.accepted, of.unadmitted = settings.noRoom("spec.listeners", namespace), true
	}
}

// shareListeners makes sure that all ListenerSets have room together, and fixes what they use.
func (g *gateway) shareListeners(settings *Settings) {
	if g.room.share(settings.ProxyBytes) {
		g.room.again()
		g.certificates = counted{}
		for _, set := range g.sets {
			for _, found := range set.listeners {
				if found.unadmitted {
					found.accepted, found.unadmitted = nil, false
				}
				g.admitListener(found, settings)
			}
		}
	}
	g.room.fix()
}

// admitRoute takes room for a route at some listeners of a Gateway, or refuses it. A host name
// counts once, as it does on the wire.
func (c *compilation) admitRoute(of *route, at []candidate) *refusal {
	if at[0].listener.layer4() {
		return nil
	}
	g, bytes, begun := at[0].listener.gateway, int64(0), len(c.charges)
	for _, each := range at {
		for _, host := range each.hosts {
			if name := (charge{g, host}); !c.charged[name] {
				c.charged[name] = true
				c.charges = append(c.charges, name)
				bytes += of.bytes + entryBytes
			}
		}
	}
	namespace := of.object.GetNamespace()
	if g.room.take(namespace, bytes) {
		return nil
	}
	for _, name := range c.charges[begun:] {
		delete(c.charged, name)
	}
	c.charges = c.charges[:begun]
	return c.settings.noRoom("spec.rules", namespace)
}

// charge is a host name that a route has at a Gateway.
type charge struct {
	gateway *gateway
	host    hostname
}

// unread reports whether a route is not even read: its namespace has far more than it has room for.
func (c *compilation) unread(of *route, listeners []*listener) *refusal {
	namespace := of.object.GetNamespace()
	if of.done || c.read[namespace] <= unreadTimes*c.settings.NamespaceBytes {
		return nil
	}
	if of.protects && len(listeners) > 0 {
		listeners[0].gateway.room.closed[namespace] = true
	}
	return c.settings.noRoom("spec.rules", namespace)
}

// closeProtected attaches the rules of a route without room that keep clients out. They answer 500, so
// that no other rule serves their requests.
func (c *compilation) closeProtected(of *route, at []candidate) {
	if !of.protects {
		return
	}
	closed, bytes := of.closed(true), int64(0)
	for _, each := range at {
		bytes += int64(len(each.hosts)) * (closed.bytes + entryBytes)
	}
	if at[0].listener.gateway.room.closeWith(of.object.GetNamespace(), bytes) {
		for _, each := range at {
			each.listener.attach(closed, each.hosts)
		}
	}
}

// closedAge sets the ages of closed routes apart: a route may be served at one listener and closed at
// another one.
const closedAge = 1 << 32

// closed returns a route whose protecting rules, or all rules, answer 500.
func (r *route) closed(onlyProtecting bool) *route {
	closed := &route{
		kind: r.kind, object: r.object, hosts: r.hosts, age: r.age + closedAge, done: true,
		accepted: refuse(ReasonNoRoom, ReasonNoRoom, "spec.rules: there is no room"),
	}
	if !onlyProtecting {
		closed.age += closedAge
	}
	for _, found := range r.rules {
		if found.protects || !onlyProtecting {
			rule := &resource.Rule{Route: found.rule.Route, Match: found.rule.Match}
			closed.rules = append(closed.rules, &orderedRule{rule: rule, rank: found.rank})
		}
	}
	closed.bytes = rulesBytes(closed.rules)
	return closed
}

// attachShared attaches all routes. Where that is more than proxies have room for, namespaces get
// room in turn, and all is attached once more.
func (c *compilation) attachShared(all []*route) {
	c.attachRoutes(all)
	again := false
	for _, found := range c.known {
		again = found.room.share(c.settings.ProxyBytes) || again
	}
	if !again {
		return
	}
	for _, found := range c.known {
		found.room.again()
		for _, at := range found.listeners {
			at.attachments, at.attached, at.claims, at.has = nil, 0, nil, nil
		}
	}
	c.attachRoutes(all)
}

// admit leaves those Ingresses of a fleet for which their namespaces have room, the oldest first. Of
// others that keep clients out the paths answer 500.
func (c *compilation) admit(of *fleet) {
	room, bytes := newBudget(c.settings.NamespaceBytes), make([]int64, len(of.members))
	certificates := counted{}
	c.readWidest(of.members)
	for i, ingress := range of.members {
		bytes[i] = c.ingressBytes(ingress, certificates)
		room.used[ingress.Namespace] += bytes[i]
	}
	room.share(c.settings.ProxyBytes)
	room.again()
	admitted := make([]*networkingv1.Ingress, 0, len(of.members))
	for i, ingress := range of.members {
		if room.take(ingress.Namespace, bytes[i]) {
			admitted = append(admitted, ingress)
			continue
		}
		refused := c.settings.noRoom("spec", ingress.Namespace)
		c.result.Problems = append(c.result.Problems, Problem{
			Object: ingressObject(ingress), Field: "spec", Reason: refused.reason, Message: refused.message,
		})
		c.fails(ingressObject(ingress), "spec", refused.reason, refused.message)
		if c.asked[ingress] != nil && isGuarded(ingress) && room.closeWith(ingress.Namespace, closedBytes(ingress)) {
			c.asked[ingress].isRefused, c.asked[ingress].hasNoRoom = true, true
			admitted = append(admitted, ingress)
		}
	}
	for _, ingress := range of.members {
		if room.closed[ingress.Namespace] {
			of.closed = append(of.closed, ingress)
		}
	}
	of.members = slices.DeleteFunc(admitted, func(ingress *networkingv1.Ingress) bool { return room.closed[ingress.Namespace] })
}

// closedBytes is about how long an Ingress is on the wire if its paths answer 500.
func closedBytes(of *networkingv1.Ingress) (bytes int64) {
	for i := range of.Spec.Rules {
		rule := &of.Spec.Rules[i]
		bytes += entryBytes + int64(len(rule.Host))
		if rule.HTTP == nil {
			continue
		}
		for j := range rule.HTTP.Paths {
			bytes += pathBytes + int64(len(rule.HTTP.Paths[j].Path)+len(of.Namespace)+len(of.Name))
		}
	}
	return bytes
}

// ingressBytes is about how long an Ingress is on the wire, with the certificates that others do
// not use before.
func (c *compilation) ingressBytes(of *networkingv1.Ingress, certificates counted) (bytes int64) {
	annotations := c.annotationBytes(of)
	bytes = c.usersBytes(of)
	for i := range of.Spec.Rules {
		rule := &of.Spec.Rules[i]
		bytes += entryBytes + int64(len(rule.Host))
		if rule.HTTP == nil {
			continue
		}
		for j := range rule.HTTP.Paths {
			path := &rule.HTTP.Paths[j]
			bytes += pathBytes + int64(len(path.Path)+2*len(of.Namespace)+len(of.Name)) + annotations
			if path.Backend.Service != nil {
				bytes += int64(len(path.Backend.Service.Name))
			}
		}
	}
	if of.Spec.DefaultBackend != nil {
		bytes += annotations
	}
	for i := range of.Spec.TLS {
		entry := &of.Spec.TLS[i]
		bytes += entryBytes * int64(max(len(entry.Hosts), 1))
		if entry.SecretName == "" {
			continue
		}
		if found, refused := c.certificateOf(key{of.Namespace, entry.SecretName}); refused == nil {
			bytes += certificates.bytes([]*certificate{found})
		}
	}
	return bytes
}
