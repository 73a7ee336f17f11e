// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/match"
	"github.com/millrace-lb/millrace/gateway/resource"
)

func drawnResource(t *rapid.T, certificates []*resource.Resource) *resource.Resource {
	number := func(what string, below int) int { return rapid.IntRange(0, below-1).Draw(t, what) }
	some := func(kind string, below int) string { return fmt.Sprint(kind, number(kind, below)) }
	host := &resource.Hostname{Name: rapid.SampledFrom([]string{"", "a.example", "b.example"}).Draw(t, "host")}
	if host.Name != "" {
		host.Wildcard = resource.Hostname_Wildcard(number("wildcard", 3))
	}
	switch number("kind", 6) {
	case 5:
		return usersFile(some("u", 2), rapid.SampledFrom([]string{"a:" + hashSHA, "b:" + hashMD5, "b:none", ""}).Draw(t, "file"))
	case 0:
		r := &resource.Listener{Port: 80, TargetPort: uint32(8000 + number("port", 2)), Protocol: resource.Listener_HTTP, Hostname: host}
		if r.TargetPort == 8001 {
			r.Protocol, r.Certificates = resource.Listener_HTTPS, []string{some("c", 2)}
		}
		return &resource.Resource{Name: some("l", 3), Kind: &resource.Resource_Listener{Listener: r}}
	case 1:
		r := &resource.RouteGroup{Hostname: host, Listeners: []string{some("l", 3)}}
		for range number("rules", 3) {
			r.Rules = append(r.Rules, toward("/", some("b", 3), drawnFilters(t)...))
		}
		return &resource.Resource{Name: some("g", 5), Kind: &resource.Resource_RouteGroup{RouteGroup: r}}
	case 2:
		r := &resource.Backend{Endpoints: some("e", 3)}
		if rapid.Bool().Draw(t, "tls") {
			r.Tls = &resource.BackendTLS{Hostname: "b", ClientCertificate: some("c", 2)}
		}
		return &resource.Resource{Name: some("b", 3), Kind: &resource.Resource_Backend{Backend: r}}
	case 3:
		name := some("e", 3)
		return endpoints(name, fmt.Sprintf("127.0.0.1:%d", 1+number("address", 3)))
	}
	from := rapid.SampledFrom(certificates).Draw(t, "certificate")
	return &resource.Resource{Name: some("c", 2), Kind: from.GetKind()}
}

func drawnFilters(t *rapid.T) []*resource.Filter {
	switch rapid.IntRange(0, 5).Draw(t, "filter") {
	case 0:
		return []*resource.Filter{password(rapid.SampledFrom([]string{"u0", "u1"}).Draw(t, "of"), "r")}
	case 1:
	default:
		return nil
	}
	prefix := rapid.SampledFrom([]string{"198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "none"})
	return []*resource.Filter{addresses(rapid.SliceOfN(prefix, 0, 2).Draw(t, "allow"), rapid.SliceOfN(prefix, 0, 1).Draw(t, "deny"))}
}

// shape describes a table as seen by requests; equal pointers have equal descriptions.
func shape(of *table) map[string]string {
	words := map[string]string{}
	groups := func(at string, hosts *match.Hosts[*group]) {
		for host, group := range hosts.All() {
			words[at+" "+host] = fmt.Sprint(len(group.Rules))
			for _, rule := range group.Rules {
				words[at+" "+host] += fmt.Sprintf(" %v %q", rule.filters.guards.any(), rule.names())
				if password := rule.filters.guards.password; password != nil {
					words[at+" "+host] += fmt.Sprintf(" %p", of.users[password.GetUsers()].from)
				}
			}
		}
	}
	for number, port := range of.ports {
		words[fmt.Sprint("port ", number)] = fmt.Sprint(port.tls, port.bytes)
		for host, vhost := range port.virtualHosts.All() {
			at := fmt.Sprint("port ", number, " ", host)
			words[at] = fmt.Sprintf("%s %p", vhost.Name, vhost.Resource)
			groups(at, &vhost.Groups)
			if of.virtualHosts[vhost.Name] != vhost {
				words[at] += " is not the site of its listener"
			}
		}
	}
	for name, each := range of.groups {
		words["group "+name] = fmt.Sprintf("%p", each.from)
	}
	for name, each := range of.backends {
		words["backend "+name] = fmt.Sprintf("%p %v", each.from, each.value.Set.Candidates())
		if each.value.TLS != nil && each.value.TLS.Certificate != &of.certificates[each.from.GetBackend().GetTls().GetClientCertificate()].value.pair {
			words["backend "+name] += " has another certificate"
		}
	}
	for name, each := range of.users {
		words["users "+name] = fmt.Sprintf("%p", each.from)
	}
	for name, each := range of.certificates {
		words["certificate "+name] = fmt.Sprintf("%p", each.from)
	}
	words["transports"] = fmt.Sprint(slices.Sorted(maps.Keys(of.transports)))
	return words
}
