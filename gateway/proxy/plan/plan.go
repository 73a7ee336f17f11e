// SPDX-License-Identifier: Apache-2.0

// Package plan selects listener, group and rule of a request, and the location of a redirect, without
// I/O. The proxy executes its decisions, and the command line explains them.
package plan

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/canonical"
	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/resource"
)

// Plan evaluates a configuration like the proxy. It ignores certificates and backend TLS, and so needs no
// keys.
type Plan struct {
	virtualHosts map[uint16]*match.Hosts[*virtualHost]
	backends     map[string]*resource.Backend
	// endpoints are for new requests.
	endpoints map[string][]netip.AddrPort
}

type (
	virtualHost = VirtualHost[struct{}, *resource.Rule]
	group       = Group[*resource.Rule]
)

// New builds a plan. It accepts every configuration that a proxy accepts.
func New(resources []*resource.Resource) (*Plan, error) {
	p := &Plan{
		virtualHosts: map[uint16]*match.Hosts[*virtualHost]{}, backends: map[string]*resource.Backend{},
		endpoints: map[string][]netip.AddrPort{},
	}
	vhosts := map[string]*virtualHost{}
	for _, r := range resources {
		var err error
		switch kind := r.GetKind().(type) {
		case *resource.Resource_Endpoints:
			p.endpoints[r.GetName()], err = candidates(kind.Endpoints)
		case *resource.Resource_Backend:
			p.backends[r.GetName()] = kind.Backend
		case *resource.Resource_Listener:
			vhosts[r.GetName()] = &virtualHost{Name: r.GetName(), Resource: kind.Listener}
			err = p.addVirtualHost(vhosts[r.GetName()])
		}
		if err != nil {
			return nil, fmt.Errorf("resource %s: %w", r.GetName(), err)
		}
	}
	for _, r := range resources {
		if group := r.GetRouteGroup(); group != nil {
			if err := p.addGroup(r.GetName(), group, vhosts); err != nil {
				return nil, fmt.Errorf("resource %s: %w", r.GetName(), err)
			}
		}
	}
	return p, nil
}

func (p *Plan) addVirtualHost(s *virtualHost) error {
	number, err := PortNumber(s.Resource.GetTargetPort())
	if err != nil {
		return err
	}
	if p.virtualHosts[number] == nil {
		p.virtualHosts[number] = &match.Hosts[*virtualHost]{}
	}
	return p.virtualHosts[number].Add(s.Resource.GetHostname(), s)
}

func (p *Plan) addGroup(name string, from *resource.RouteGroup, vhosts map[string]*virtualHost) error {
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
	made := &group{Name: name, Matcher: matcher, Rules: from.GetRules()}
	for _, at := range from.GetListeners() {
		if vhosts[at] == nil {
			return fmt.Errorf("listener %q is not in the configuration", at)
		}
		if err := vhosts[at].Groups.Add(from.GetHostname(), made); err != nil {
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

// Address is a configured endpoint.
type Address struct {
	netip.AddrPort
	Draining bool
}

// Addresses returns the valid endpoints and the first error.
func Addresses(from *resource.Endpoints) ([]Address, error) {
	addresses := make([]Address, 0, len(from.GetEndpoints()))
	var invalid error
	for _, endpoint := range from.GetEndpoints() {
		address, err := netip.ParseAddr(endpoint.GetAddress())
		number, failed := PortNumber(endpoint.GetPort())
		if err = cmp.Or(err, failed); err != nil {
			invalid = cmp.Or(invalid, err)
			continue
		}
		addresses = append(addresses, Address{netip.AddrPortFrom(address.Unmap(), number), endpoint.GetDraining()})
	}
	return addresses, invalid
}

// candidates returns draining endpoints only if all are draining.
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

// PortNumber validates a port number.
func PortNumber(number uint32) (uint16, error) {
	if number == 0 || number > 65535 {
		return 0, fmt.Errorf("%d is not a port", number)
	}
	return uint16(number), nil
}

func (p *Plan) at(port uint16) func(host string) (*virtualHost, bool) {
	return func(host string) (*virtualHost, bool) {
		if p.virtualHosts[port] == nil {
			return nil, false
		}
		return p.virtualHosts[port].Find(host)
	}
}

// Decision is the predicted handling of a request.
type Decision struct {
	// Listener and Group are resource names, empty if routing failed before.
	Listener, Group string
	// Rule is the matching rule, or nil.
	Rule *resource.Rule
	// Status is the status code of the proxy's own response; 0 if a backend responds.
	Status int
	// Location is the target of a redirect.
	Location string
	// Backends are the rule's backends with a weight.
	Backends []WeightedBackend
}

// WeightedBackend is the share of a backend: Weight of Total.
type WeightedBackend struct {
	// Backend is a resource name; empty for an invalid reference.
	Backend       string
	Weight, Total uint64
	// Refused reports whether requests are rejected with 500.
	Refused bool
	// Endpoints are the candidates for new requests.
	Endpoints []netip.AddrPort
}

// Request is a client request. Header has canonical names.
type Request struct {
	Method string
	URL    *url.URL
	Header map[string][]string
}

// Decide predicts the handling of a request at a target port. With TLS, the server name is the URL's host.
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
	if status := canonical.Request(in); status != 0 {
		return Decision{Status: status}
	}
	message := Message{
		Method: in.Method, Host: in.Host, Path: in.URL.Path, RawQuery: in.URL.RawQuery,
		Header: in.Header, TLS: p.encrypted(port), ServerName: in.URL.Hostname(),
	}
	found, status := Find(&message, p.at(port))
	decision := Decision{Status: status}
	if found.VirtualHost != nil {
		decision.Listener = found.VirtualHost.Name
	}
	if found.Group != nil {
		decision.Group = found.Group.Name
	}
	if status != 0 {
		return decision
	}
	decision.Rule = found.Group.Rules[found.Rule]
	if redirect := redirectOf(decision.Rule); Redirects(redirect, message.Header, message.TLS) {
		target := Target{
			TLS: message.TLS, Host: found.Host, Path: found.Path, RawQuery: message.RawQuery, Port: found.VirtualHost.Resource.GetPort(),
		}
		if found.Path == in.URL.Path {
			target.RawPath = in.URL.RawPath
		}
		decision.Status, decision.Location = RedirectStatus(redirect), Location(redirect, Prefix(decision.Rule), &target)
		return decision
	}
	p.addBackends(&decision)
	return decision
}

// encrypted reports whether the target port expects TLS, which is the same for all its listeners.
func (p *Plan) encrypted(port uint16) bool {
	if p.virtualHosts[port] != nil {
		for _, vhost := range p.virtualHosts[port].All() {
			return vhost.Resource.GetProtocol() != resource.Listener_HTTP
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

// DecideTLS predicts the handling of a TLS connection that is forwarded by server name.
func (p *Plan) DecideTLS(port uint16, serverName string) Decision {
	var decision Decision
	host, ok := match.ServerName(serverName)
	if !ok {
		return decision
	}
	vhost, ok := p.at(port)(host)
	if !ok {
		return decision
	}
	decision.Listener = vhost.Name
	group, ok := vhost.Groups.Find(host)
	if !ok || len(group.Rules) == 0 || !Tunnels(vhost.Resource) {
		return decision
	}
	decision.Group, decision.Rule = group.Name, group.Rules[0]
	p.addBackends(&decision)
	return decision
}

func (p *Plan) addBackends(decision *Decision) {
	total, refused := uint64(0), 0
	for _, from := range decision.Rule.GetBackends() {
		total += uint64(from.GetWeight())
	}
	for _, from := range decision.Rule.GetBackends() {
		if from.GetWeight() == 0 {
			continue
		}
		weighted := WeightedBackend{Backend: from.GetBackend(), Weight: uint64(from.GetWeight()), Total: total, Refused: true}
		if backend := p.backends[from.GetBackend()]; backend != nil {
			weighted.Refused, weighted.Endpoints = backend.GetRefuse(), p.endpoints[backend.GetEndpoints()]
		}
		if weighted.Refused {
			refused++
		}
		decision.Backends = append(decision.Backends, weighted)
	}
	if refused == len(decision.Backends) {
		decision.Status = http.StatusInternalServerError
	}
}

// Listener returns the listener and group selected by a host at a target port, or "".
func (p *Plan) Listener(port uint16, host string) (listener, group string, err error) {
	name, ok := match.ServerName(host)
	if !ok {
		return "", "", fmt.Errorf("%q is not a hostname", host)
	}
	vhost, ok := p.at(port)(name)
	if !ok {
		return "", "", nil
	}
	if found, ok := vhost.Groups.Find(name); ok {
		group = found.Name
	}
	return vhost.Name, group, nil
}
