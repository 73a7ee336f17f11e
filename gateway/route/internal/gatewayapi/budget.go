// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"google.golang.org/protobuf/proto"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

func (c *compiler) admitListener(g *gateway, of *listener) {
	if of.accepted != nil {
		return
	}
	bytes := builder.EntryBytes + g.certificates.Bytes(of.certificates)
	if namespace := of.owner.GetNamespace(); !g.budget.Allocate(namespace, bytes) {
		of.accepted, of.hasNoRoom = c.LimitExceeded("spec.listeners", namespace), true
	}
}

func (c *compiler) shareListeners(g *gateway) {
	if g.budget.Share(c.Settings.ProxyBytes) {
		g.budget.Reset()
		g.certificates = builder.CertificateSet{}
		for _, set := range g.sets {
			for _, found := range set.listeners {
				if found.hasNoRoom {
					found.accepted, found.hasNoRoom = nil, false
				}
				c.admitListener(g, found)
			}
		}
	}
	g.budget.SetFixed()
}

// admitRoute allocates room for a route at the listeners of a Gateway, or refuses the route. A host name
// counts once, because listeners share its route group.
func (c *compiler) admitRoute(of *route, at []candidate) *builder.Refusal {
	if at[0].listener.layer4() {
		return nil
	}
	g, bytes, begun := at[0].listener.gateway, int64(0), len(c.charges)
	for _, each := range at {
		for _, host := range each.hosts {
			if name := (charge{g, host}); !c.charged[name] {
				c.charged[name] = true
				c.charges = append(c.charges, name)
				bytes += of.bytes + builder.EntryBytes
			}
		}
	}
	namespace := of.object.GetNamespace()
	if g.budget.Allocate(namespace, bytes) {
		return nil
	}
	for _, name := range c.charges[begun:] {
		delete(c.charged, name)
	}
	c.charges = c.charges[:begun]
	return c.LimitExceeded("spec.rules", namespace)
}

type charge struct {
	gateway *gateway
	host    ownership.Host
}

// readLimitFactor times the limit of a namespace is the maximum size of its routes that are read. Reading
// more would delay other namespaces.
const readLimitFactor = 2

// refuseUnread refuses a route without reading it if the routes of its namespace exceed the limit for
// reading.
func (c *compiler) refuseUnread(of *route, listeners []*listener) *builder.Refusal {
	namespace := of.object.GetNamespace()
	if of.isRead || c.read[namespace] <= readLimitFactor*c.Settings.NamespaceBytes {
		return nil
	}
	if of.protects && len(listeners) > 0 {
		listeners[0].gateway.budget.Closed[namespace] = true
	}
	return c.LimitExceeded("spec.rules", namespace)
}

// closeProtected attaches the protecting rules of a route without room. They answer 500.
func (c *compiler) closeProtected(of *route, at []candidate) {
	if !of.protects {
		return
	}
	closed, bytes := of.closed(true), int64(0)
	for _, each := range at {
		bytes += int64(len(each.hosts)) * (closed.bytes + builder.EntryBytes)
	}
	if at[0].listener.gateway.budget.AllocateReserve(of.object.GetNamespace(), bytes) {
		for _, each := range at {
			each.listener.attach(closed, each.hosts)
		}
	}
}

// closedAge is added to the ages of closed routes, because a route may be served at one listener and closed
// at another.
const closedAge = 1 << 32

func (r *route) closed(onlyProtecting bool) *route {
	closed := &route{
		kind: r.kind, object: r.object, hosts: r.hosts, age: r.age + closedAge, isRead: true,
		accepted: builder.Refuse(model.ReasonLimitExceeded, model.ReasonLimitExceeded, "spec.rules: there is no room"),
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

func rulesBytes(rules []*orderedRule) (bytes int64) {
	for _, each := range rules {
		bytes += int64(proto.Size(each.rule))
	}
	return bytes
}

// attachShared attaches all routes. If they exceed the limit of a proxy, it attaches them again with lower
// limits of namespaces.
func (c *compiler) attachShared(all []*route) {
	c.attachRoutes(all)
	again := false
	for _, found := range c.gatewayByKey {
		again = found.budget.Share(c.Settings.ProxyBytes) || again
	}
	if !again {
		return
	}
	for _, found := range c.gatewayByKey {
		found.budget.Reset()
		for _, at := range found.listeners {
			at.attachments, at.attached, at.claims, at.attachedKinds = nil, 0, nil, nil
		}
	}
	c.attachRoutes(all)
}
