// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
)

func of(object, prefix, backend string, filters ...*resource.Filter) *resource.Rule {
	rule := toward(prefix, backend, filters...)
	rule.Route = object + "/0"
	return rule
}

func unknown() *resource.Filter { return &resource.Filter{} }

// TestFaultyRule checks that a rule which cannot be built answers 500, so that no less specific rule matches
// instead, and that changes of other rules at the same host are applied.
func TestFaultyRule(t *testing.T) {
	port := freePort(t)
	a, b := serve(t, echo("a")), serve(t, echo("b"))
	group := func(backend string, filters ...*resource.Filter) *resource.Resource {
		return routes("g", "l", nil, of("httproute/one/r", "/one/secret", "a", filters...), of("httproute/one/r", "/one", backend),
			of("httproute/two/r", "/", backend))
	}
	f := start(t, nil, all(one(httpListener("l", port, nil), group("a")), backend("a", a), backend("b", b))...)
	c := client(t, port, nil)
	for range 2 {
		f.change(group("b", unknown()), httpListener("other", freePort(t), nil))
		for path, want := range map[string]int{"/one/secret": 500, "/one": 200, "/": 200} {
			got := get(t, c, "http://x"+path)
			if got.StatusCode != want || want == 200 && got.Header.Get("X-Backend") != "b" {
				t.Errorf("%s: status %d of %q, want %d of b", path, got.StatusCode, got.Header.Get("X-Backend"), want)
			}
		}
		want := "resource g: rule 0 (httproute/one/r/0): filter 0 is of a kind that is not known\n"
		if got := statusOf(f.Proxy); got != want {
			t.Errorf("rejected: %s, want %s", got, want)
		}
	}
	f.change(group("a"))
	if got := get(t, c, "http://x/one/secret"); got.StatusCode != 200 || statusOf(f.Proxy) != "" {
		t.Errorf("status %d, rejected %q; want 200 and nothing", got.StatusCode, statusOf(f.Proxy))
	}
}

// TestRefusedFrontendAdmitsNoClient checks that rejected resources still restrict access.
func TestRefusedFrontendAdmitsNoClient(t *testing.T) {
	authority := newCA(t)
	b := serve(t, echo("b"))
	port := freePort(t)
	list := backend("b", b)
	list[0].GetBackend().Tls = &resource.BackendTLS{Hostname: "b", CertificateAuthorities: []string{"missing"}}
	withAuthorization := tlsListener("ls", port, nil, "c", "missing")
	withAuthorization.GetListener().ClientValidation = &resource.ClientValidation{CertificateAuthorities: []string{"missing"}}
	plain := freePort(t)
	f := start(t, nil, all(one(authority.resource("c", "a.example.com"), withAuthorization, httpListener("l", plain, nil),
		routes("g", "l", nil, toward("/", "b")), routes("gs", "ls", nil, toward("/", "b"))), list)...)
	if got := get(t, client(t, plain, nil), "http://x/"); got.StatusCode != 500 {
		t.Errorf("backend with a missing CA: status %d, want 500", got.StatusCode)
	}
	config := &tls.Config{RootCAs: authority.pool(), ServerName: "a.example.com", Certificates: []tls.Certificate{authority.pair("client")}}
	if response, err := client(t, port, config).Get("https://a.example.com/"); err == nil {
		_ = response.Body.Close()
		t.Errorf("listener with a missing CA accepts a client: status %d", response.StatusCode)
	}
	if got := statusOf(f.Proxy); !strings.Contains(got, "resource b: ") || !strings.Contains(got, "resource ls: ") {
		t.Errorf("rejected: %q, want b and ls", got)
	}
}

func TestListenerPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port, other := uint32(taken.Addr().(*net.TCPAddr).Port), freePort(t)
	f := start(t, nil, all(one(httpListener("l", port, nil), httpListener("o", other, nil),
		routes("g", "l", nil, toward("/", "b")), routes("go", "o", nil, toward("/", "b"))), backend("b", serve(t, echo("b"))))...)
	if got := get(t, client(t, other, nil), "http://x/"); got.StatusCode != 200 {
		t.Errorf("another port: status %d, want 200", got.StatusCode)
	}
	if got := statusOf(f.Proxy); !strings.Contains(got, "address already in use") || strings.Count(got, "\n") != 1 {
		t.Errorf("rejected: %q, want the listener", got)
	}
	_ = taken.Close()
	f.change(endpoints("b/endpoints", serve(t, echo("b"))))
	if got := get(t, client(t, port, nil), "http://x/"); got.StatusCode != 200 || statusOf(f.Proxy) != "" {
		t.Errorf("after the port was released: status %d, rejected %q", got.StatusCode, statusOf(f.Proxy))
	}
}

// TestUpdatesAreServed applies random updates. Resources without a fault are served as they are, and
// without any fault the table is the one of a new proxy.
func TestUpdatesAreServed(t *testing.T) {
	authority := newCA(t)
	certificates := []*resource.Resource{authority.resource("c", "a.example"), authority.resource("c", "b.example"), {Kind: &resource.Resource_Certificate{
		Certificate: &resource.Certificate{Chain: []byte("none"), Key: []byte("none")},
	}}}
	settings := Defaults()
	fresh := func(resources []*resource.Resource) *table {
		b := &builder{
			settings: settings.Upstream, metrics: newMetrics(false), now: time.Now(),
			secret: make([]byte, 32), old: &table{},
		}
		return b.build(Update{Whole: true, Resources: resources})
	}
	good, bad := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := New(settings)
		// Do not listen.
		p.closed = true
		wanted := map[string]*resource.Resource{}
		for range rapid.IntRange(1, 20).Draw(t, "updates") {
			old := p.table.Load()
			before := shape(old)
			p.Apply(drawnUpdate(t, certificates, wanted))
			if after := shape(old); !maps.Equal(before, after) {
				t.Fatalf("the table was modified: %v, previously %v", after, before)
			}
			current := p.table.Load()
			isServedAsWanted(t, current, wanted)
			// Equal resources keep their pointer.
			resources := slices.Collect(maps.Values(current.resources))
			whole := fresh(resources)
			if (len(whole.resourceErrors) == 0) != (len(current.resourceErrors) == 0) {
				t.Fatalf("errors = %v; in a new proxy %v", current.resourceErrors, whole.resourceErrors)
			}
			if len(whole.resourceErrors) > 0 {
				bad++
				continue
			}
			good++
			if got, want := shape(current), shape(whole); !maps.Equal(got, want) {
				t.Fatalf("table\n%v\nwant\n%v", got, want)
			}
			if _, err := plan.New(resources); err != nil {
				t.Fatalf("plan rejects the configuration: %v", err)
			}
		}
	})
	if good < 50 || bad < 50 {
		t.Errorf("only %d valid and %d invalid updates: the coverage is too low", good, bad)
	}
}

func drawnUpdate(t *rapid.T, certificates []*resource.Resource, wanted map[string]*resource.Resource) Update {
	update := Update{Whole: rapid.IntRange(0, 9).Draw(t, "whole") == 0}
	if update.Whole {
		clear(wanted)
	}
	names := map[string]bool{}
	for range rapid.IntRange(0, 6).Draw(t, "changes") {
		r := drawnResource(t, certificates)
		if rapid.IntRange(0, 9).Draw(t, "spoilt") == 0 {
			spoil(r)
		}
		name := r.GetName()
		if names[name] {
			continue
		}
		names[name] = true
		if rapid.IntRange(0, 3).Draw(t, "remove") == 0 {
			update.Removed = append(update.Removed, name)
			delete(wanted, name)
		} else {
			update.Resources = append(update.Resources, r)
			wanted[name] = r
		}
	}
	return update
}

// isServedAsWanted checks that each resource without a fault is built from its current version.
func isServedAsWanted(t *rapid.T, current *table, wanted map[string]*resource.Resource) {
	for name := range current.resourceErrors {
		if wanted[name] == nil {
			t.Fatalf("%s has an error, but is not in the configuration", name)
		}
	}
	served := map[string]*resource.Resource{}
	for name, each := range current.certificates {
		served[name] = each.from
	}
	for name, each := range current.users {
		served[name] = each.from
	}
	for name, each := range current.endpoints {
		served[name] = each.from
	}
	for name, each := range current.backends {
		served[name] = each.from
	}
	groups := map[*group]bool{}
	for name, each := range current.groups {
		served[name], groups[each.value] = each.from, true
	}
	for name, vhost := range current.virtualHosts {
		for host, group := range vhost.Groups.All() {
			if !groups[group] {
				t.Fatalf("listener %s uses an unknown group for %s", name, host)
			}
		}
	}
	for name, each := range current.listeners {
		served[name] = each.from
		if current.resourceErrors[name] == nil && current.virtualHosts[name] == nil {
			t.Fatalf("listener %s is valid, but not served", name)
		}
	}
	for name, r := range wanted {
		if current.resourceErrors[name] == nil && !proto.Equal(served[name], r) {
			t.Fatalf("%s has no error, but is served as %v", name, served[name])
		}
	}
	for name := range served {
		if wanted[name] == nil {
			t.Fatalf("%s is served, but is not in the configuration", name)
		}
	}
}

func spoil(r *resource.Resource) {
	switch kind := r.GetKind().(type) {
	case *resource.Resource_Listener:
		kind.Listener.Protocol = 77
	case *resource.Resource_RouteGroup:
		kind.RouteGroup.Rules = append(kind.RouteGroup.Rules, of("httproute/bad/r", "/bad", "", unknown()))
	case *resource.Resource_Endpoints:
		kind.Endpoints.Endpoints = append(kind.Endpoints.Endpoints, &resource.Endpoint{Address: "none", Port: 1})
	case *resource.Resource_Backend:
		kind.Backend.Endpoints = "none"
	case *resource.Resource_Certificate:
		r.Kind = &resource.Resource_Certificate{Certificate: &resource.Certificate{Chain: []byte("none")}}
	}
}

// TestOneBadResource checks that only an invalid resource and those that refer to it are rejected.
func TestOneBadResource(t *testing.T) {
	authority := newCA(t)
	var good []*resource.Resource
	port := freePort(t)
	for i := range 5 {
		name := fmt.Sprint(i)
		good = append(good, authority.resource("c"+name, name+".example.com"), authority.authority("ca"+name),
			tlsListener("l"+name, port, hostname(name+".example.com"), "c"+name),
			routes("g"+name, "l"+name, hostname(name+".example.com"), of("httproute/ns/r"+name, "/", "b"+name)))
		list := backend("b"+name, "127.0.0.1:1")
		list[0].GetBackend().Tls = &resource.BackendTLS{Hostname: "b", CertificateAuthorities: []string{"ca" + name}}
		good = append(good, list...)
	}
	for i, at := range good {
		for _, previous := range []bool{false, true} {
			p := New(Defaults())
			p.closed = true
			if previous {
				if p.Apply(Update{Version: "0", Whole: true, Resources: good}); len(p.Refused()) > 0 {
					t.Fatal(p.Refused())
				}
			}
			wanted := slices.Clone(good)
			wanted[i], _ = proto.Clone(at).(*resource.Resource)
			spoil(wanted[i])
			if authority := wanted[i].GetCertificateAuthority(); authority != nil {
				authority.Certificates = nil
			}
			p.Apply(Update{Version: "1", Whole: true, Resources: wanted})
			table := p.table.Load()
			for name, err := range table.resourceErrors {
				if !strings.Contains(name, fmt.Sprint(i/6)) {
					t.Errorf("%s is invalid, but %s was rejected: %s", at.GetName(), name, err)
				}
			}
			if table.resourceErrors[at.GetName()] == nil {
				t.Errorf("%s is invalid, but was not rejected: %s", at.GetName(), statusOf(p))
			}
		}
	}
}
