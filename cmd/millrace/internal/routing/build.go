// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Choice selects rules.
type Choice struct {
	Namespace string
	// Host selects rules that a request for a host or wildcard reaches; empty: all.
	Host string
}

func (c Choice) all() bool { return c == Choice{} }

// View returns the compiled configuration.
func (c *Compiled) View(choice Choice) (*View, error) {
	view := &View{Owners: []Owner{}, Problems: c.problems(choice), Remarks: c.in.Remarks}
	at := map[model.Object]int{}
	for _, proxy := range c.result.Proxies {
		owner := c.owner(proxy.Owner)
		if err := c.addProxy(&owner, proxy, choice); err != nil {
			return nil, err
		}
		c.hide(&owner)
		at[proxy.Owner] = len(view.Owners)
		view.Owners = append(view.Owners, owner)
	}
	for _, frontend := range c.result.Frontends {
		i, known := at[frontend.Gateway]
		if !known {
			continue
		}
		c.addFrontend(&view.Owners[i], frontend, choice)
	}
	if !choice.all() {
		view.Owners = slices.DeleteFunc(view.Owners, func(owner Owner) bool { return len(owner.Rules) == 0 })
	}
	slices.SortFunc(view.Owners, func(a, b Owner) int { return compareNames(a.Name, b.Name) })
	return view, nil
}

func (c *Compiled) owner(of model.Object) Owner {
	service := c.fleet(of)
	owner := Owner{
		Name:         Name{of.Kind, of.Namespace, of.Name},
		ReadyProxies: c.proxiesOf(service), Listeners: []Listener{}, Rules: []Rule{},
	}
	for _, address := range vipsOf(service) {
		owner.VIPs = append(owner.VIPs, address.String())
	}
	if service == nil {
		owner.VIPs = c.written(owner.Name)
	}
	return owner
}

// written returns the VIPs in the status of a Gateway, or of an Ingress of a class, for users that may not
// read the Service of the proxies.
func (c *Compiled) written(owner Name) []string {
	var found []string
	for _, gateway := range c.in.Objects.Gateways {
		if owner.Kind == "Gateway" && gateway.Namespace == owner.Namespace && gateway.Name == owner.Name {
			for _, address := range gateway.Status.Addresses {
				found = append(found, address.Value)
			}
		}
	}
	for _, ingress := range c.in.Objects.Ingresses {
		if owner.Kind == "IngressClass" && value(ingress.Spec.IngressClassName) == owner.Name {
			for _, point := range ingress.Status.LoadBalancer.Ingress {
				found = append(found, point.IP)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func (c *Compiled) addProxy(owner *Owner, of *model.Proxy, choice Choice) error {
	chosen, err := c.chosen(of, choice.Host)
	if err != nil {
		return err
	}
	listeners, backends := listenersOf(of), backendsOf(of)
	used := map[string]bool{}
	for _, r := range of.Resources {
		group := r.GetRouteGroup()
		names := slices.DeleteFunc(slices.Clone(group.GetListeners()), func(name string) bool {
			return chosen != nil && !chosen[listenerGroup{name, r.GetName()}]
		})
		if len(names) == 0 {
			continue
		}
		for _, from := range group.GetRules() {
			rule := c.rule(from, backends)
			if choice.Namespace != "" && rule.Route.Namespace != choice.Namespace {
				continue
			}
			rule.Hostname = hostname(group.GetHostname())
			rule.listenAt(names, listeners, used)
			owner.Rules = append(owner.Rules, rule)
		}
	}
	for name, listener := range listeners {
		if choice.all() || used[name] {
			owner.Listeners = append(owner.Listeners, Listener{
				Name: strings.TrimPrefix(name, "listener/"), Port: int32(listener.GetPort()),
				Protocol: protocolOf(listener), Hostname: hostname(listener.GetHostname()),
			})
		}
	}
	// Rules of one group stay in order of precedence.
	slices.SortStableFunc(owner.Rules, func(a, b Rule) int {
		return cmp.Or(compareHosts(a.Hostname, b.Hostname), slices.Compare(a.Listeners, b.Listeners))
	})
	sortListeners(owner.Listeners)
	return nil
}

// listenAt also marks the listeners as used.
func (r *Rule) listenAt(names []string, listeners map[string]*resource.Listener, used map[string]bool) {
	for _, name := range names {
		used[name] = true
		r.Listeners = append(r.Listeners, strings.TrimPrefix(name, "listener/"))
		if port := portOf(listeners[name]); !slices.Contains(r.Ports, port) {
			r.Ports = append(r.Ports, port)
		}
	}
}

// listenerGroup is a group at a listener.
type listenerGroup struct{ listener, group string }

// chosen returns the groups that requests for a host reach at each port; nil: all.
func (c *Compiled) chosen(of *model.Proxy, host string) (map[listenerGroup]bool, error) {
	if host == "" {
		return nil, nil
	}
	found := map[listenerGroup]bool{}
	if strings.HasPrefix(host, "*") {
		for _, r := range of.Resources {
			if group := r.GetRouteGroup(); group != nil && hostname(group.GetHostname()) == host {
				for _, listener := range group.GetListeners() {
					found[listenerGroup{listener, r.GetName()}] = true
				}
			}
		}
		return found, nil
	}
	plan, err := c.plan(of)
	if err != nil {
		return nil, err
	}
	for _, port := range of.Ports {
		listener, group, err := plan.Listener(uint16(port.Target), host)
		if err != nil {
			return nil, err
		}
		found[listenerGroup{listener, group}] = true
	}
	return found, nil
}

func (c *Compiled) addFrontend(owner *Owner, of *model.Frontend, choice Choice) {
	if choice.Host != "" {
		return
	}
	rule := Rule{
		Route: Name{of.Route.Kind, of.Route.Namespace, of.Route.Name}, Listeners: []string{of.Listener},
		Ports: []string{fmt.Sprintf("%d/%s", of.Port, of.Protocol)}, Hostname: "*", Match: "-",
	}
	if choice.Namespace != "" && rule.Route.Namespace != choice.Namespace {
		return
	}
	for _, service := range of.Services {
		backend := Backend{
			Namespace: service.Namespace, Name: service.Name, Port: service.Port,
			Weight: int64(service.Weight), Refused: service.Invalid, Endpoints: []string{},
		}
		if !service.Invalid {
			backend.Endpoints = open(c.layer4Endpoints(service.ServicePort, of.Protocol))
		}
		rule.Backends = append(rule.Backends, backend)
	}
	if len(rule.Backends) == 0 {
		rule.Answer = "refuses connections"
	}
	owner.Rules = append(owner.Rules, rule)
	owner.Listeners = append(owner.Listeners, Listener{
		Name: of.Listener, Port: of.Port, Protocol: string(of.Protocol), Hostname: "*",
	})
	sortListeners(owner.Listeners)
}

func (c *Compiled) layer4Endpoints(port model.ServicePort, protocol corev1.Protocol) *resource.Endpoints {
	if protocol == corev1.ProtocolTCP {
		return c.endpointsOf(port)
	}
	return c.datagramEndpoints(port)
}

// open returns the endpoints for new requests: the ready ones, or else the draining ones.
func open(endpoints *resource.Endpoints) []string {
	ready, draining := []string{}, []string{}
	for _, endpoint := range endpoints.GetEndpoints() {
		address, err := netip.ParseAddr(endpoint.GetAddress())
		if err != nil {
			continue
		}
		text := netip.AddrPortFrom(address, uint16(endpoint.GetPort())).String()
		if endpoint.GetDraining() {
			draining = append(draining, text)
		} else {
			ready = append(ready, text)
		}
	}
	if len(ready) == 0 {
		return draining
	}
	return ready
}

func sortListeners(listeners []Listener) {
	slices.SortFunc(listeners, func(a, b Listener) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), compareHosts(a.Hostname, b.Hostname), cmp.Compare(a.Name, b.Name))
	})
}

// compareHosts sorts names before wildcards, and all hosts last.
func compareHosts(a, b string) int {
	rank := func(host string) int {
		switch {
		case host == "*":
			return 2
		case strings.HasPrefix(host, "*"):
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
}
