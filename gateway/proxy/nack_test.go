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

// TestRefusedRulesKeepTheirPreviousOnes checks that another tenant's change at the same host is applied.
func TestRefusedRulesKeepTheirPreviousOnes(t *testing.T) {
	port := freePort(t)
	a, b := serve(t, echo("a")), serve(t, echo("b"))
	first := routes("g", "l", nil, of("httproute/one/r", "/one/deep", "b"), of("httproute/one/r", "/one", "a"), of("httproute/two/r", "/", "a"))
	f := start(t, nil, all(one(httpListener("l", port, nil), first), backend("a", a), backend("b", b))...)
	c := client(t, port, nil)
	at := func(path, want string) {
		t.Helper()
		if got := get(t, c, "http://x"+path); got.Header.Get("X-Backend") != want {
			t.Errorf("%s is answered by %q (%d), want %q", path, got.Header.Get("X-Backend"), got.StatusCode, want)
		}
	}
	f.change(routes("g", "l", nil,
		of("httproute/two/r", "/one/deep/two", "b"), of("httproute/one/r", "/one/new", "b", unknown()), of("httproute/one/r", "/one", "b"),
		of("httproute/two/r", "/", "b")))
	at("/one", "a")
	at("/one/deep", "b")
	at("/one/new", "a")
	at("/one/deep/two", "b")
	at("/", "b")
	want := "g httproute/one/r rule 1 (httproute/one/r/0): filter 0 is of a kind that is not known true\n"
	if got := told(f.Proxy); got != want {
		t.Errorf("refused: %s, want %s", got, want)
	}
	f.change(endpoints("a/endpoints", b))
	at("/one", "b")
	f.change(endpoints("a/endpoints", a), first)
	at("/one", "a")
	if got := told(f.Proxy); got != "" {
		t.Errorf("refused still: %s", got)
	}
}

// TestRefusedRulesWithoutPreviousOnes checks that less specific rules of others do not match instead.
func TestRefusedRulesWithoutPreviousOnes(t *testing.T) {
	port := freePort(t)
	b := serve(t, echo("b"))
	group := func(filters ...*resource.Filter) *resource.Resource {
		return routes("g", "l", nil, of("httproute/one/r", "/one/secret", "b", filters...), of("httproute/one/r", "/one", "b"), of("httproute/two/r", "/", "b"))
	}
	f := start(t, nil, all(one(httpListener("l", port, nil), group(unknown())), backend("b", b))...)
	c := client(t, port, nil)
	for range 2 {
		for path, want := range map[string]int{"/one/secret": 500, "/one": 500, "/": 200} {
			if got := get(t, c, "http://x"+path); got.StatusCode != want {
				t.Errorf("%s: status %d, want %d", path, got.StatusCode, want)
			}
		}
		f.change(group(unknown()), httpListener("other", freePort(t), nil))
		if got := told(f.Proxy); !strings.HasSuffix(got, "is not known false\n") {
			t.Errorf("refused: %q, want no retained rules", got)
		}
	}
	f.change(group())
	if got := get(t, c, "http://x/one/secret"); got.StatusCode != 200 || told(f.Proxy) != "" {
		t.Errorf("status %d, refused %q; want 200 and nothing", got.StatusCode, told(f.Proxy))
	}
}

// TestRefusedLetsNothingIn checks that rejected resources still restrict access.
func TestRefusedLetsNothingIn(t *testing.T) {
	authority := newCA(t)
	b := serve(t, echo("b"))
	port := freePort(t)
	list := backend("b", b)
	list[0].GetBackend().Tls = &resource.BackendTLS{Hostname: "b", CertificateAuthorities: []string{"missing"}}
	asking := tlsListener("ls", port, nil, "c", "missing")
	asking.GetListener().ClientValidation = &resource.ClientValidation{CertificateAuthorities: []string{"missing"}}
	plain := freePort(t)
	f := start(t, nil, all(one(authority.resource("c", "a.example.com"), asking, httpListener("l", plain, nil),
		routes("g", "l", nil, toward("/", "b")), routes("gs", "ls", nil, toward("/", "b"))), list)...)
	if got := get(t, client(t, plain, nil), "http://x/"); got.StatusCode != 500 {
		t.Errorf("a backend whose authority is missing: status %d, want 500", got.StatusCode)
	}
	config := &tls.Config{RootCAs: authority.pool(), ServerName: "a.example.com", Certificates: []tls.Certificate{authority.pair("client")}}
	if response, err := client(t, port, config).Get("https://a.example.com/"); err == nil {
		_ = response.Body.Close()
		t.Errorf("a listener whose authority is missing lets a client in: status %d", response.StatusCode)
	}
	if got := told(f.Proxy); !strings.Contains(got, "b ") || !strings.Contains(got, "ls ") {
		t.Errorf("refused: %q, want b and ls", got)
	}
}

func TestPortThatIsTaken(t *testing.T) {
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
	if got := told(f.Proxy); !strings.Contains(got, "address already in use") || strings.Count(got, "\n") != 1 {
		t.Errorf("refused: %q, want the listener", got)
	}
	_ = taken.Close()
	f.change(endpoints("b/endpoints", serve(t, echo("b"))))
	if got := get(t, client(t, port, nil), "http://x/"); got.StatusCode != 200 || told(f.Proxy) != "" {
		t.Errorf("the port that is free: status %d, refused %q", got.StatusCode, told(f.Proxy))
	}
}

// TestAnyUpdateIsServed applies random updates: exactly the faulty resources are rejected, and the rest is
// valid.
func TestAnyUpdateIsServed(t *testing.T) {
	authority := newCA(t)
	certificates := []*resource.Resource{authority.resource("c", "a.example"), authority.resource("c", "b.example"), {Kind: &resource.Resource_Certificate{
		Certificate: &resource.Certificate{Chain: []byte("none"), Key: []byte("none")},
	}}}
	settings := Defaults()
	strict := func(resources map[string]*resource.Resource) (*table, error) {
		b := &builder{
			settings: settings.Upstream.settings(), metrics: newMetrics(false), now: time.Now(),
			secret: make([]byte, 32), old: &table{},
		}
		return b.build(Update{Whole: true, Resources: slices.Collect(maps.Values(resources))})
	}
	good, bad := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := New(settings)
		// Do not listen.
		p.closed = true
		wanted := map[string]*resource.Resource{}
		for range rapid.IntRange(1, 20).Draw(t, "updates") {
			update := Update{Whole: rapid.IntRange(0, 9).Draw(t, "whole") == 0}
			if update.Whole {
				wanted = map[string]*resource.Resource{}
			}
			names := map[string]bool{}
			for range rapid.IntRange(0, 6).Draw(t, "changes") {
				r := drawnResource(t, certificates)
				if rapid.IntRange(0, 9).Draw(t, "spoilt") == 0 {
					spoil(r)
				}
				switch name := r.GetName(); {
				case names[name]:
					continue
				case rapid.IntRange(0, 3).Draw(t, "remove") == 0:
					update.Removed = append(update.Removed, name)
					delete(wanted, name)
					names[name] = true
				default:
					update.Resources = append(update.Resources, r)
					wanted[name] = r
					names[name] = true
				}
			}
			if err := p.Apply(update); err != nil {
				t.Fatalf("the whole is refused: %v", err)
			}
			refused := map[string]bool{}
			for _, each := range p.Refused() {
				refused[each.GetResource()] = true
				if wanted[each.GetResource()] == nil {
					t.Fatalf("%s is refused, and nobody wants it", each.GetResource())
				}
			}
			current := p.table.Load()
			for name, r := range wanted {
				// A group is not rejected because of a rejected listener.
				dependent := slices.ContainsFunc(r.GetRouteGroup().GetListeners(), func(at string) bool { return refused[at] })
				if !refused[name] && !dependent && !proto.Equal(current.resources[name], r) {
					t.Fatalf("%s is not refused, and not served as it is wanted", name)
				}
			}
			for name := range current.resources {
				if wanted[name] == nil {
					t.Fatalf("%s is served, and nobody wants it", name)
				}
			}
			whole, err := strict(current.resources)
			if err != nil {
				t.Fatalf("what is served is refused as a whole: %v", err)
			}
			if got, want := shape(current), shape(whole); !maps.Equal(got, want) {
				t.Fatalf("what is served is\n%v\nwant\n%v", got, want)
			}
			if _, err := plan.New(slices.Collect(maps.Values(current.resources))); err != nil {
				t.Fatalf("plan does not take what is served: %v", err)
			}
			if _, err := strict(wanted); (err == nil) != (len(refused) == 0) {
				t.Fatalf("refused are %v; as a whole: %v", refused, err)
			} else if err == nil {
				good++
			} else {
				bad++
			}
		}
	})
	if good < 50 || bad < 50 {
		t.Errorf("%d good updates and %d bad ones: the test says little", good, bad)
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
				if err := p.Apply(Update{Version: "0", Whole: true, Resources: good}); err != nil || len(p.Refused()) > 0 {
					t.Fatal(err, p.Refused())
				}
			}
			wanted := slices.Clone(good)
			wanted[i], _ = proto.Clone(at).(*resource.Resource)
			spoil(wanted[i])
			if authority := wanted[i].GetCertificateAuthority(); authority != nil {
				authority.Certificates = nil
			}
			if err := p.Apply(Update{Version: "1", Whole: true, Resources: wanted}); err != nil {
				t.Fatalf("%s: %v", at.GetName(), err)
			}
			table := p.table.Load()
			for _, each := range p.Refused() {
				if !strings.Contains(each.GetResource(), fmt.Sprint(i/6)) {
					t.Errorf("%s is bad, and %s is refused: %s", at.GetName(), each.GetResource(), each.GetReason())
				}
			}
			if !strings.Contains(told(p), at.GetName()+" ") {
				t.Errorf("%s is bad, and not refused: %s", at.GetName(), told(p))
			}
			for j, other := range good {
				if j/6 != i/6 && table.resources[other.GetName()] != other {
					t.Errorf("%s is bad, and %s is not served", at.GetName(), other.GetName())
				}
			}
		}
	}
}
