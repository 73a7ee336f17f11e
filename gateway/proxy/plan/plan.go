// SPDX-License-Identifier: Apache-2.0

// Package plan decides what becomes of a request: which listener, group and rule take it, and
// where a redirect leads. It does no I/O and runs on any system. The proxy carries the decision
// out, and the command line explains it.
package plan

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/edge"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// Plan is a configuration as a proxy carries it out, by the steps that serve a request. It needs
// no keys: what certificates and the TLS of backends do has no part in it.
type Plan struct {
	// sites are by target port.
	sites    map[uint16]*match.Hosts[*site]
	backends map[string]*resource.Backend
	// endpoints are those that new requests may go to.
	endpoints map[string][]netip.AddrPort
}

// site is a listener with its groups of rules.
type site struct {
	name     string
	listener *resource.Listener
	groups   match.Hosts[*group]
}

func (s *site) Listener() string                 { return s.name }
func (s *site) TrustedHops() int                 { return int(s.listener.GetTrustedHops()) }
func (s *site) AnyServerName() bool              { return s.listener.GetAnyServerName() }
func (s *site) Group(host string) (*group, bool) { return s.groups.Find(host) }

// group is the rules for one hostname.
type group struct {
	name    string
	matcher *match.Group
	rules   []*resource.Rule
}

func (g *group) Matcher() *match.Group { return g.matcher }

// New makes a plan of a whole configuration. It takes each one that a proxy takes.
func New(resources []*resource.Resource) (*Plan, error) {
	p := &Plan{
		sites: map[uint16]*match.Hosts[*site]{}, backends: map[string]*resource.Backend{},
		endpoints: map[string][]netip.AddrPort{},
	}
	sites := map[string]*site{}
	for _, r := range resources {
		var err error
		switch kind := r.GetKind().(type) {
		case *resource.Resource_Endpoints:
			p.endpoints[r.GetName()], err = candidates(kind.Endpoints)
		case *resource.Resource_Backend:
			p.backends[r.GetName()] = kind.Backend
		case *resource.Resource_Listener:
			sites[r.GetName()] = &site{name: r.GetName(), listener: kind.Listener}
			err = p.addSite(sites[r.GetName()])
		}
		if err != nil {
			return nil, fmt.Errorf("resource %s: %w", r.GetName(), err)
		}
	}
	for _, r := range resources {
		if group := r.GetRouteGroup(); group != nil {
			if err := p.addGroup(r.GetName(), group, sites); err != nil {
				return nil, fmt.Errorf("resource %s: %w", r.GetName(), err)
			}
		}
	}
	return p, nil
}

func (p *Plan) addSite(s *site) error {
	number, err := PortNumber(s.listener.GetTargetPort())
	if err != nil {
		return err
	}
	if p.sites[number] == nil {
		p.sites[number] = &match.Hosts[*site]{}
	}
	return p.sites[number].Add(s.listener.GetHostname(), s)
}

func (p *Plan) addGroup(name string, from *resource.RouteGroup, sites map[string]*site) error {
	matches := make([]*resource.Match, 0, len(from.GetRules()))
	for i, rule := range from.GetRules() {
		matches = append(matches, rule.GetMatch())
		for _, backend := range rule.GetBackends() {
			if err := p.hasBackend(backend); err != nil {
				return fmt.Errorf("rule %d (%s): %w", i, rule.GetRoute(), err)
			}
		}
	}
	matcher, err := match.Compile(matches)
	if err != nil {
		return err
	}
	made := &group{name: name, matcher: matcher, rules: from.GetRules()}
	for _, at := range from.GetListeners() {
		if sites[at] == nil {
			return fmt.Errorf("listener %q is not in the configuration", at)
		}
		if err := sites[at].groups.Add(from.GetHostname(), made); err != nil {
			return fmt.Errorf("listener %s: %w", at, err)
		}
	}
	return nil
}

func (p *Plan) hasBackend(of *resource.WeightedBackend) error {
	if of.GetWeight() == 0 || of.GetBackend() == "" {
		return nil
	}
	backend := p.backends[of.GetBackend()]
	if backend == nil {
		return fmt.Errorf("backend %q is not in the configuration", of.GetBackend())
	}
	if _, ok := p.endpoints[backend.GetEndpoints()]; !ok && !backend.GetRefuse() {
		return fmt.Errorf("endpoints %q of backend %q are not in the configuration", backend.GetEndpoints(), of.GetBackend())
	}
	return nil
}

// Address is an endpoint as the configuration has it.
type Address struct {
	netip.AddrPort
	Draining bool
}

// Addresses reads endpoints, for the proxy and for Plan.
func Addresses(from *resource.Endpoints) ([]Address, error) {
	addresses := make([]Address, 0, len(from.GetEndpoints()))
	for _, endpoint := range from.GetEndpoints() {
		address, err := netip.ParseAddr(endpoint.GetAddress())
		if err != nil {
			return nil, err
		}
		number, err := PortNumber(endpoint.GetPort())
		if err != nil {
			return nil, err
		}
		addresses = append(addresses, Address{netip.AddrPortFrom(address.Unmap(), number), endpoint.GetDraining()})
	}
	return addresses, nil
}

// candidates are the endpoints that new requests may go to: those that drain only where no
// other is there.
func candidates(from *resource.Endpoints) ([]netip.AddrPort, error) {
	addresses, err := Addresses(from)
	if err != nil {
		return nil, err
	}
	ready, draining := []netip.AddrPort{}, []netip.AddrPort{}
	for _, address := range addresses {
		if address.Draining {
			draining = append(draining, address.AddrPort)
		} else {
			ready = append(ready, address.AddrPort)
		}
	}
	if len(ready) == 0 {
		return draining, nil
	}
	return ready, nil
}

// PortNumber is a port of the configuration.
func PortNumber(number uint32) (uint16, error) {
	if number == 0 || number > 65535 {
		return 0, fmt.Errorf("%d is no port", number)
	}
	return uint16(number), nil
}

// at gives the listener that a host has at a target port.
func (p *Plan) at(port uint16) func(host string) (*site, bool) {
	return func(host string) (*site, bool) {
		if p.sites[port] == nil {
			return nil, false
		}
		return p.sites[port].Find(host)
	}
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
	if status := edge.Canonical(in); status != 0 {
		return Decision{Status: status}
	}
	message := Message{
		Method: in.Method, Host: in.Host, Path: in.URL.Path, RawQuery: in.URL.RawQuery,
		Header: in.Header, TLS: p.encrypted(port), ServerName: in.URL.Hostname(),
	}
	way, status := Find[*site, *group](&message, p.at(port))
	decision := Decision{Status: status}
	if way.Site != nil {
		decision.Listener = way.Site.name
	}
	if way.Group != nil {
		decision.Group = way.Group.name
	}
	if status != 0 {
		return decision
	}
	decision.Rule = way.Group.rules[way.Rule]
	if redirect := redirectOf(decision.Rule); Redirects(redirect, message.Header, message.TLS) {
		target := Target{
			TLS: message.TLS, Host: way.Host, Path: way.Path, RawQuery: message.RawQuery, Port: way.Site.listener.GetPort(),
		}
		if way.Path == in.URL.Path {
			target.RawPath = in.URL.RawPath
		}
		decision.Status, decision.Location = RedirectStatus(redirect), Location(redirect, Prefix(decision.Rule), &target)
		return decision
	}
	p.shares(&decision)
	return decision
}

// encrypted reports whether clients of a target port begin with a ClientHello. All listeners
// of a port agree on it.
func (p *Plan) encrypted(port uint16) bool {
	if p.sites[port] != nil {
		for _, site := range p.sites[port].All() {
			return site.listener.GetProtocol() != resource.Listener_HTTP
		}
	}
	return false
}

func redirectOf(rule *resource.Rule) *resource.Redirect {
	for _, filter := range slices.Backward(rule.GetFilters()) {
		if redirect := filter.GetRedirect(); redirect != nil {
			return redirect
		}
	}
	return nil
}

// DecideTLS says what becomes of a TLS connection that is passed on.
func (p *Plan) DecideTLS(port uint16, serverName string) Decision {
	var decision Decision
	host, ok := match.ServerName(serverName)
	if !ok {
		return decision
	}
	site, ok := p.at(port)(host)
	if !ok {
		return decision
	}
	decision.Listener = site.name
	group, ok := site.groups.Find(host)
	if !ok || len(group.rules) == 0 || !Tunnels(site.listener) {
		return decision
	}
	decision.Group, decision.Rule = group.name, group.rules[0]
	p.shares(&decision)
	return decision
}

// shares lists the backends of the decision's rule.
func (p *Plan) shares(decision *Decision) {
	total, refused := uint64(0), 0
	for _, from := range decision.Rule.GetBackends() {
		total += uint64(from.GetWeight())
	}
	for _, from := range decision.Rule.GetBackends() {
		if from.GetWeight() == 0 {
			continue
		}
		share := Share{Backend: from.GetBackend(), Weight: uint64(from.GetWeight()), Total: total, Refused: true}
		if backend := p.backends[from.GetBackend()]; backend != nil {
			share.Refused, share.Endpoints = backend.GetRefuse(), p.endpoints[backend.GetEndpoints()]
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

// Listener gives the names of the listener and of the group that a host has at a target port,
// empty where there is none.
func (p *Plan) Listener(port uint16, host string) (listener, group string, err error) {
	name, ok := match.ServerName(host)
	if !ok {
		return "", "", fmt.Errorf("%q is no host name", host)
	}
	site, ok := p.at(port)(name)
	if !ok {
		return "", "", nil
	}
	if found, ok := site.groups.Find(name); ok {
		group = found.name
	}
	return site.name, group, nil
}
