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

// Default limits of the configuration of a proxy, in bytes of its messages. A proxy accepts at most 512
// MiB in one transaction, and its memory usage grows with the configuration.
const (
	defaultNamespaceBytes = 64 << 20
	defaultProxyBytes     = 256 << 20
)

const (
	entryBytes = 128
	pathBytes  = 64
	// reserveParts divides a namespace's limit: one part is for rules that answer 500 for objects without room.
	reserveParts = 4
	// readLimitFactor is the multiple of its limit up to which a namespace's routes are read: parsing delays
	// others.
	readLimitFactor = 2
)

// budget limits the usage of each namespace in a proxy's configuration. The author of the Gateway or class is
// not limited.
type budget struct {
	limit int64
	// fixed is the usage without routes, used the usage with them.
	fixed, used map[string]int64
	// reserve is the limit of each namespace for closed paths, closing its usage.
	reserve int64
	closing map[string]int64
	// closed are the namespaces that exceeded the reserve: none of their rules is served.
	closed map[string]bool
}

func newBudget(most int64) *budget {
	return &budget{
		limit: most, fixed: map[string]int64{}, used: map[string]int64{},
		reserve: most / reserveParts, closing: map[string]int64{}, closed: map[string]bool{},
	}
}

// allocateReserve takes room of the reserve. If the reserve is exceeded, the namespace is closed, because its
// other objects could serve requests that the protecting object would reject.
func (b *budget) allocateReserve(namespace string, bytes int64) bool {
	if b.closing[namespace] += bytes; b.closing[namespace] > b.reserve {
		b.closed[namespace] = true
	}
	return !b.closed[namespace]
}

// allocate adds bytes unless the usage would exceed the limit.
func (b *budget) allocate(namespace string, bytes int64) bool {
	if b.used[namespace]+bytes > b.limit {
		return false
	}
	b.used[namespace] += bytes
	return true
}

func (b *budget) setFixed() { b.fixed = maps.Clone(b.used) }

func (b *budget) reset() {
	b.used = maps.Clone(b.fixed)
	clear(b.closing)
	clear(b.closed)
}

// share lowers the limit of a namespace so that the sum of all usages is at most total, and reports
// whether that was necessary. Namespaces below the new limit keep their usage.
func (b *budget) share(total int64) bool {
	sum := func(most int64) (all int64) {
		for namespace, bytes := range b.used {
			all += max(b.fixed[namespace], min(bytes, most))
		}
		return all
	}
	if sum(b.limit) <= total {
		return false
	}
	// The smallest limit that exceeds the total, less one.
	b.limit = max(int64(sort.Search(int(b.limit), func(most int) bool { return sum(int64(most)) > total }))-1, 0)
	return true
}

// noRoom is the refusal of an object whose namespace has no room. The message contains no current usage:
// each change of an older object, up to a hundred a second, would rewrite the statuses of all objects
// without room.
func (s *Settings) noRoom(field, namespace string) *refusal {
	return refuse(ReasonNoRoom, ReasonNoRoom,
		"%s: older objects of namespace %s use its share of the configuration of these proxies: %d bytes, "+
			"or less if all namespaces need more than %d; delete or shorten some of them, or raise "+
			"--namespace-configuration and --proxy-configuration of the gateway",
		field, namespace, s.NamespaceBytes, s.ProxyBytes)
}

func rulesBytes(rules []*orderedRule) (bytes int64) {
	for _, each := range rules {
		bytes += int64(proto.Size(each.rule))
	}
	return bytes
}

func certificateBytes(of *certificate) int64 {
	found := of.resource.GetCertificate()
	return int64(len(found.GetChain()) + len(found.GetKey()))
}

type certificateSet map[*resource.Resource]bool

// bytes counts only certificates that were not counted before.
func (c certificateSet) bytes(certificates []*certificate) (bytes int64) {
	for _, each := range certificates {
		if !c[each.resource] {
			c[each.resource] = true
			bytes += certificateBytes(each)
		}
	}
	return bytes
}

func (g *gateway) admitListener(of *listener, settings *Settings) {
	if of.accepted != nil {
		return
	}
	bytes := entryBytes + g.certificates.bytes(of.certificates)
	if namespace := of.owner.GetNamespace(); !g.budget.allocate(namespace, bytes) {
		of.accepted, of.hasNoRoom = settings.noRoom("spec.listeners", namespace), true
	}
}

func (g *gateway) shareListeners(settings *Settings) {
	if g.budget.share(settings.ProxyBytes) {
		g.budget.reset()
		g.certificates = certificateSet{}
		for _, set := range g.sets {
			for _, found := range set.listeners {
				if found.hasNoRoom {
					found.accepted, found.hasNoRoom = nil, false
				}
				g.admitListener(found, settings)
			}
		}
	}
	g.budget.setFixed()
}

// admitRoute takes room for a route at listeners of a Gateway, or refuses it. A host name counts once,
// because listeners share its route group.
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
	if g.budget.allocate(namespace, bytes) {
		return nil
	}
	for _, name := range c.charges[begun:] {
		delete(c.charged, name)
	}
	c.charges = c.charges[:begun]
	return c.settings.noRoom("spec.rules", namespace)
}

type charge struct {
	gateway *gateway
	host    hostname
}

// refuseUnread refuses a route without reading it if its namespace exceeds its limit by far.
func (c *compilation) refuseUnread(of *route, listeners []*listener) *refusal {
	namespace := of.object.GetNamespace()
	if of.isRead || c.read[namespace] <= readLimitFactor*c.settings.NamespaceBytes {
		return nil
	}
	if of.protects && len(listeners) > 0 {
		listeners[0].gateway.budget.closed[namespace] = true
	}
	return c.settings.noRoom("spec.rules", namespace)
}

// closeProtected attaches a route without room, with its protecting rules answering 500.
func (c *compilation) closeProtected(of *route, at []candidate) {
	if !of.protects {
		return
	}
	closed, bytes := of.closed(true), int64(0)
	for _, each := range at {
		bytes += int64(len(each.hosts)) * (closed.bytes + entryBytes)
	}
	if at[0].listener.gateway.budget.allocateReserve(of.object.GetNamespace(), bytes) {
		for _, each := range at {
			each.listener.attach(closed, each.hosts)
		}
	}
}

// closedAge separates the ages of closed routes from those of the original routes: a route may be served
// at one listener and closed at another.
const closedAge = 1 << 32

func (r *route) closed(onlyProtecting bool) *route {
	closed := &route{
		kind: r.kind, object: r.object, hosts: r.hosts, age: r.age + closedAge, isRead: true,
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

// attachShared attaches all routes, again with lower limits of namespaces if they exceed the total.
func (c *compilation) attachShared(all []*route) {
	c.attachRoutes(all)
	again := false
	for _, found := range c.gatewayByKey {
		again = found.budget.share(c.settings.ProxyBytes) || again
	}
	if !again {
		return
	}
	for _, found := range c.gatewayByKey {
		found.budget.reset()
		for _, at := range found.listeners {
			at.attachments, at.attached, at.claims, at.attachedKinds = nil, 0, nil, nil
		}
	}
	c.attachRoutes(all)
}

// admit removes Ingresses beyond their namespace's limit, the youngest first. Paths of protecting ones answer
// 500.
func (c *compilation) admit(of *ingressSet) {
	room, bytes := newBudget(c.settings.NamespaceBytes), make([]int64, len(of.members))
	certificates := certificateSet{}
	c.readWidest(of.members)
	for i, ingress := range of.members {
		bytes[i] = c.ingressBytes(ingress, certificates)
		room.used[ingress.Namespace] += bytes[i]
	}
	room.share(c.settings.ProxyBytes)
	room.reset()
	admitted := make([]*networkingv1.Ingress, 0, len(of.members))
	for i, ingress := range of.members {
		if room.allocate(ingress.Namespace, bytes[i]) {
			admitted = append(admitted, ingress)
			continue
		}
		refused := c.settings.noRoom("spec", ingress.Namespace)
		c.result.Problems = append(c.result.Problems, Problem{
			Object: ingressObject(ingress), Field: "spec", Reason: refused.reason, Message: refused.message,
		})
		c.addFailure(ingressObject(ingress), "spec", refused.reason, refused.message)
		if c.nginxSettings[ingress] != nil && isGuarded(ingress) && room.allocateReserve(ingress.Namespace, closedBytes(ingress)) {
			c.nginxSettings[ingress].isRefused, c.nginxSettings[ingress].hasNoRoom = true, true
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

// ingressBytes estimates the encoded size of an Ingress with the certificates not counted yet.
func (c *compilation) ingressBytes(of *networkingv1.Ingress, certificates certificateSet) (bytes int64) {
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
