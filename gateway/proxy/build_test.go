// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// full returns a configuration with all kinds of resources.
func full(t *testing.T, authority *ca) []*resource.Resource {
	b := backend("b", "127.0.0.1:1")
	b[0].GetBackend().Tls = &resource.BackendTLS{Hostname: "b", CertificateAuthorities: []string{"ca"}, ClientCertificate: "c"}
	secure := tlsListener("ls", freePort(t), hostname("a.example.com"), "c")
	secure.GetListener().ClientValidation = &resource.ClientValidation{CertificateAuthorities: []string{"ca"}}
	rule := toward("/", "b", &resource.Filter{Kind: &resource.Filter_Mirror{Mirror: &resource.Mirror{Backend: "m"}}})
	return all(one(
		&resource.Resource{Name: "s", Kind: &resource.Resource_SharedSecret{SharedSecret: &resource.SharedSecret{Values: [][]byte{make([]byte, 32)}}}},
		authority.resource("c", "a.example.com"), authority.authority("ca"), httpListener("l", freePort(t), nil), secure,
		routes("r", "l", nil, rule), routes("rs", "ls", nil, toward("/", "m")),
	), b, backend("m"))
}

func TestApplyKeepsWhatIsUnchanged(t *testing.T) {
	resources := full(t, newCA(t))
	f := start(t, nil, resources...)
	before := f.table.Load()

	copies := make([]*resource.Resource, len(resources))
	for i, r := range resources {
		copies[i] = proto.Clone(r).(*resource.Resource)
	}
	f.apply(copies...)
	same(t, before, f.table.Load())

	f.change(routes("r", "l", nil, toward("/other", "b")))
	after := f.table.Load()
	if after.groups["r"].value == before.groups["r"].value {
		t.Error("the changed group was not rebuilt")
	}
	if len(after.groups["r"].value.Rules) != 1 || before.groups["r"].value.Rules[0].prefix != "" {
		t.Error("the old table was modified")
	}
	after.groups["r"] = before.groups["r"]
	same(t, before, after)

	// Changed endpoints rebuild their backend but keep its transport and endpoint state.
	f.change(endpoints("b/endpoints", "127.0.0.1:1", "127.0.0.1:2"))
	last := f.table.Load()
	if last.backends["b"].value == before.backends["b"].value || last.backends["b"].value.Set.Len() != 2 {
		t.Error("the backend did not receive its endpoints")
	}
	if last.backends["b"].value.Set.All()[0] != before.backends["b"].value.Set.All()[0] {
		t.Error("a remaining endpoint was replaced")
	}
	if !maps.Equal(last.transports, before.transports) {
		t.Error("the transports were replaced")
	}
	if last.listeners["ls"].value != before.listeners["ls"].value || last.groups["rs"].value != before.groups["rs"].value {
		t.Error("objects that do not depend on the endpoints were rebuilt")
	}
}

func same(t *testing.T, a, b *table) {
	t.Helper()
	equal(t, "certificates", a.certificates, b.certificates)
	equal(t, "authorities", a.authorities, b.authorities)
	equal(t, "endpoints", a.endpoints, b.endpoints)
	equal(t, "backends", a.backends, b.backends)
	equal(t, "listeners", a.listeners, b.listeners)
	equal(t, "groups", a.groups, b.groups)
	if !maps.Equal(a.transports, b.transports) {
		t.Error("the transports differ")
	}
}

func equal[T comparable](t *testing.T, kind string, a, b map[string]built[T]) {
	t.Helper()
	if len(a) != len(b) || len(a) == 0 {
		t.Errorf("%d and %d %s; want equal numbers above 0", len(a), len(b), kind)
	}
	for name := range a {
		if a[name].value != b[name].value {
			t.Errorf("%s %s was rebuilt", kind, name)
		}
	}
}

// mistakes returns updates with one error each, by the expected message.
func mistakes(t *testing.T, authority *ca, resources []*resource.Resource) map[string]Update {
	get := func(name string) *resource.Resource {
		for _, r := range resources {
			if r.GetName() == name {
				return proto.Clone(r).(*resource.Resource)
			}
		}
		t.Fatalf("no resource %s", name)
		return nil
	}
	changed := func(name string, change func(*resource.Resource)) Update {
		r := get(name)
		change(r)
		return Update{Resources: one(r)}
	}
	renamed := get("l")
	renamed.Name = "l2"
	return map[string]Update{
		`certificate "c" is not in`:                     {Removed: []string{"c"}},
		`certificate authority "ca" is not in`:          {Removed: []string{"ca"}},
		`resource b: endpoints "b/endpoints" is not in`: {Removed: []string{"b/endpoints"}},
		`backend "b" is not in`:                         {Removed: []string{"b"}},
		`backend "m" is not in`:                         {Removed: []string{"m"}},
		`resource r: listener "l" is not in`:            {Removed: []string{"l"}},
		`resource l2: port`:                             {Resources: one(renamed)},
		`resource r2: listener l: two values`:           {Resources: one(routes("r2", "l", nil))},
		`two shared secrets`:                            {Resources: one(&resource.Resource{Name: "s2", Kind: get("s").Kind})},
		`resource c: tls`:                               changed("c", func(r *resource.Resource) { r.GetCertificate().Key = authority.resource("x", "x").GetCertificate().Key }),
		`resource ca: no certificate`:                   changed("ca", func(r *resource.Resource) { r.GetCertificateAuthority().Certificates = []byte("x") }),
		`a secret of 3 bytes`:                           changed("s", func(r *resource.Resource) { r.GetSharedSecret().Values = [][]byte{[]byte("abc")} }),
		`resource b/endpoints: ParseAddr`:               changed("b/endpoints", func(r *resource.Resource) { r.GetEndpoints().Endpoints[0].Address = "x" }),
		`resource b/endpoints: 0 is not a port`:         changed("b/endpoints", func(r *resource.Resource) { r.GetEndpoints().Endpoints[0].Port = 0 }),
		`resource l: 70000 is not a port`:               changed("l", func(r *resource.Resource) { r.GetListener().TargetPort = 70000 }),
		`resource l: protocol`:                          changed("l", func(r *resource.Resource) { r.GetListener().Protocol = 0 }),
		`both TLS and plain text`:                       changed("l", func(r *resource.Resource) { r.GetListener().TargetPort = get("ls").GetListener().TargetPort }),
		`rule 0 (httproute/default/b/0): filter 1 is of a kind`: changed("r", func(r *resource.Resource) {
			r.GetRouteGroup().Rules[0].Filters = append(r.GetRouteGroup().Rules[0].Filters, &resource.Filter{})
		}),
		`resource r: match of rule 0: path: error parsing regexp: missing arg`: changed("r", func(r *resource.Resource) {
			r.GetRouteGroup().Rules[0].Match.Path = &resource.PathMatch{Kind: 2, Value: "*"}
		}),
	}
}

func statusOf(p *Proxy) string {
	var text strings.Builder
	for _, reason := range p.Refused() {
		fmt.Fprintln(&text, reason)
	}
	return text.String()
}

// TestApplyRefuses checks that only the faulty resource is rejected, by name, until it is repaired.
func TestApplyRefuses(t *testing.T) {
	authority := newCA(t)
	resources := full(t, authority)
	f := start(t, nil, resources...)
	for want, update := range mistakes(t, authority, resources) {
		update.Version = "version"
		update.Resources = append(update.Resources, routes("other", "l", hostname("other.example.com"), toward("/", "m")))
		f.Apply(update)
		if got := statusOf(f.Proxy); !strings.Contains(got, want) || strings.Contains(got, update.Version) {
			t.Errorf("rejection %q; want %q without the version", got, want)
		}
		table := f.table.Load()
		removed := fmt.Sprint(update.Removed)
		if other := table.groups["other"]; removed != "[m]" && removed != "[l]" && (other.value == nil || len(other.value.Rules[0].backends) != 1) {
			t.Errorf("%s: another group is not served", want)
		}
		if _, text := status(t, f.Admin(), "/metrics"); !strings.Contains(text, fmt.Sprintf("millrace_proxy_rejected_resources %d\n", len(table.resourceErrors))) {
			t.Errorf("%s: the rejection is not counted", want)
		}
		f.apply(resources...)
		if got := statusOf(f.Proxy); got != "" {
			t.Fatalf("%s: still rejected: %s", want, got)
		}
	}
}
