// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/edge"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/upstream"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// Plan is a configuration as a proxy carries it out, without listening or sending. It says
// what would become of a request, by the steps that serve one. It needs no keys: what
// certificates and the TLS of backends do has no part in it.
type Plan struct {
	table *table
	// names are those of the groups.
	names map[*group]string
}

// NewPlan makes a plan of a whole configuration.
func NewPlan(resources []*resource.Resource) (*Plan, error) {
	settings := Defaults()
	b := &builder{
		settings: settings.Upstream.settings(), metrics: newMetrics(false), now: time.Now(),
		secret: make([]byte, 32), old: &table{},
	}
	made, err := b.build(Update{Version: "plan", Whole: true, Resources: keyless(resources)})
	if err != nil {
		return nil, err
	}
	p := &Plan{table: made, names: make(map[*group]string, len(made.groups))}
	for name, group := range made.groups {
		p.names[group.value] = name
	}
	return p, nil
}

// keyless leaves out certificates, and what refers to them.
func keyless(resources []*resource.Resource) []*resource.Resource {
	kept := make([]*resource.Resource, 0, len(resources))
	for _, r := range resources {
		switch kind := r.GetKind().(type) {
		case *resource.Resource_Certificate, *resource.Resource_CertificateAuthority, *resource.Resource_SharedSecret:
			continue
		case *resource.Resource_Listener:
			from := kind.Listener
			r = &resource.Resource{Name: r.GetName(), Kind: &resource.Resource_Listener{Listener: &resource.Listener{
				Port: from.GetPort(), TargetPort: from.GetTargetPort(), Protocol: from.GetProtocol(),
				Hostname: from.GetHostname(), TrustedHops: from.GetTrustedHops(),
			}}}
		case *resource.Resource_Backend:
			from := kind.Backend
			r = &resource.Resource{Name: r.GetName(), Kind: &resource.Resource_Backend{Backend: &resource.Backend{
				Protocol: from.GetProtocol(), Endpoints: from.GetEndpoints(), Refuse: from.GetRefuse(),
			}}}
		}
		kept = append(kept, r)
	}
	return kept
}

// Decision is what would become of a request.
type Decision struct {
	// Listener and Group are names of resources, empty where the request got no further.
	Listener, Group string
	// Rule is what takes the request; nil: none does.
	Rule *resource.Rule
	// Status is what the proxy answers by itself; 0: a backend answers.
	Status int
	// Location is where a redirect leads.
	Location string
	// Shares are the backends of the rule that take a part of the requests.
	Shares []Share
}

// Share is a backend's part of a rule's requests: Weight of Total.
type Share struct {
	// Backend is the name of a resource; empty: the reference to it is invalid.
	Backend       string
	Weight, Total uint64
	// Refused says that requests are answered with 500.
	Refused bool
	// Endpoints may be chosen.
	Endpoints []netip.AddrPort
}

// Request is what a client asks for. Header has canonical names.
type Request struct {
	Method string
	URL    *url.URL
	Header map[string][]string
}

// Decide says what becomes of a request that reaches a target port. With TLS, its server name
// is that of the URL.
func (p *Plan) Decide(port uint16, request Request) Decision {
	in := &http.Request{
		Method: request.Method, URL: request.URL, Host: request.URL.Host, ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header(request.Header).Clone(),
	}
	if in.Header == nil {
		in.Header = http.Header{}
	}
	if in.URL.Path == "" {
		root := *in.URL
		root.Path = "/"
		in.URL = &root
	}
	if at := p.table.ports[port]; at != nil && at.tls {
		in.TLS = &tls.ConnectionState{ServerName: request.URL.Hostname()}
	}
	x := &exchange{in: in, table: p.table}
	decision := Decision{Status: edge.Canonical(in)}
	if decision.Status == 0 {
		decision.Status = x.route(port)
	}
	if x.site == nil {
		return decision
	}
	decision.Listener = x.site.name
	if group, ok := x.site.groups.Find(x.host); ok {
		decision.Group = p.names[group]
	}
	if x.rule == nil {
		return decision
	}
	decision.Rule = x.rule.from
	if redirect := x.rule.filters.redirect; redirect != nil {
		decision.Status, decision.Location = redirectStatus(redirect), location(redirect, x.rule.prefix, x)
		return decision
	}
	p.shares(&decision, x.rule)
	return decision
}

// DecideTLS says what becomes of a TLS connection that is passed on.
func (p *Plan) DecideTLS(port uint16, serverName string) Decision {
	var decision Decision
	host, ok := match.ServerName(serverName)
	if !ok {
		return decision
	}
	site := p.table.site(port, host)
	if site == nil {
		return decision
	}
	decision.Listener = site.name
	group, ok := site.groups.Find(host)
	if !ok || len(group.rules) == 0 || !site.tunnels() {
		return decision
	}
	decision.Group, decision.Rule = p.names[group], group.rules[0].from
	p.shares(&decision, group.rules[0])
	return decision
}

// shares lists the backends of a rule.
func (p *Plan) shares(decision *Decision, of *rule) {
	before, refused := uint64(0), 0
	for i := range of.shares {
		from := &of.shares[i]
		share := Share{Backend: from.backend, Weight: from.end - before, Total: of.total, Refused: true}
		before = from.end
		if from.backend != "" {
			backend := p.table.backend(from.backend)
			share.Refused = backend.Refuse
			share.Endpoints = endpointsOf(backend)
		}
		if share.Refused {
			refused++
		}
		decision.Shares = append(decision.Shares, share)
	}
	if refused == len(decision.Shares) {
		decision.Status = http.StatusInternalServerError
	}
}

// endpointsOf lists those that new requests may go to.
func endpointsOf(backend *upstream.Backend) []netip.AddrPort {
	if backend.Set == nil {
		return nil
	}
	return backend.Set.Candidates()
}

// Listener gives the names of the listener and of the group that a host has at a target port,
// empty where there is none.
func (p *Plan) Listener(port uint16, host string) (listener, group string, err error) {
	name, ok := match.ServerName(host)
	if !ok {
		return "", "", fmt.Errorf("%q is no host name", host)
	}
	site := p.table.site(port, name)
	if site == nil {
		return "", "", nil
	}
	if found, ok := site.groups.Find(name); ok {
		group = p.names[found]
	}
	return site.name, group, nil
}
