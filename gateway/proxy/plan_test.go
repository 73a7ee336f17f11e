// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"testing"

	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
)

func planned(port uint32) []*resource.Resource {
	redirect := &resource.Filter{Kind: &resource.Filter_Redirect{Redirect: &resource.Redirect{Scheme: "https", Status: 301}}}
	shared := toward("/", "a")
	shared.Backends = []*resource.WeightedBackend{{Backend: "a", Weight: 3}, {Backend: "", Weight: 1}, {Backend: "none", Weight: 0}}
	refused := toward("/refused", "refused")
	refusing := &resource.Resource{Name: "refused", Kind: &resource.Resource_Backend{Backend: &resource.Backend{Refuse: true}}}
	return all(
		one(httpListener("l", port, nil), refusing,
			routes("g", "l", hostname("a.example"), toward("/moved", "a", redirect), refused, shared),
			routes("h", "l", hostname("b.example"), toward("/only", "a"))),
		backend("a", "198.18.1.1:80", "198.18.1.2:80"), backend("none"))
}

func TestPlan(t *testing.T) {
	made, err := plan.New(planned(10080))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		url, want string
	}{
		{"http://a.example/x", `g httproute/default/a/0 0 "" a 3/4 2 false;  1/4 0 true;`},
		{"http://A.example.:80/moved/x?q", `g httproute/default/a/0 301 "https://a.example/moved/x?q"`},
		{"http://a.example/refused", `g httproute/default/refused/0 500 "" refused 1/1 0 true;`},
		{"http://a.example/x/../refused", `g httproute/default/refused/0 500 "" refused 1/1 0 true;`},
		{"http://b.example", `h  404 ""`},
		{"http://c.example/", `  404 ""`},
	} {
		target, err := url.Parse(test.url)
		if err != nil {
			t.Fatal(err)
		}
		d := made.Decide(10080, plan.Request{Method: http.MethodGet, URL: target})
		have := fmt.Sprintf("%s %s %d %q", d.Group, d.Rule.GetRoute(), d.Status, d.Location)
		for _, backend := range d.Backends {
			have += fmt.Sprintf(" %s %d/%d %d %v;", backend.Backend, backend.Weight, backend.Total, len(backend.Endpoints), backend.Refused)
		}
		if have != test.want {
			t.Errorf("%s: %s; want %s", test.url, have, test.want)
		}
	}
	if d := made.Decide(1, plan.Request{Method: http.MethodGet, URL: &url.URL{Host: "a.example"}}); d.Status != 404 || d.Listener != "" {
		t.Errorf("port without a listener: %+v", d)
	}
	listener, group, err := made.Listener(10080, "b.example")
	if listener != "l" || group != "h" || err != nil {
		t.Errorf("listener of b.example = %q, group %q: %v", listener, group, err)
	}
	if _, _, err := made.Listener(10080, "no host"); err == nil {
		t.Error("no error for an invalid host name")
	}
}

// TestPlanMatchesApplied compares plans with the proxy's responses.
func TestPlanMatchesApplied(t *testing.T) {
	port := freePort(t)
	resources := planned(port)
	start(t, nil, resources...)
	made, err := plan.New(resources)
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, port, nil)
	for _, text := range []string{"http://a.example/moved", "http://a.example/refused", "http://b.example/", "http://c.example/x"} {
		target, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		reply, planned := get(t, c, text), made.Decide(uint16(port), plan.Request{Method: http.MethodGet, URL: target})
		if reply.StatusCode != planned.Status || reply.Header.Get("Location") != planned.Location {
			t.Errorf("%s: response %d %s, planned %+v", text, reply.StatusCode, reply.Header.Get("Location"), planned)
		}
	}
}

func TestPlanNeedsNoKeys(t *testing.T) {
	site := tlsListener("l", 10443, hostname("a.example"), "certificate")
	resources := all(one(site, routes("g", "l", hostname("a.example"), toward("/", "a")),
		&resource.Resource{Name: "certificate", Kind: &resource.Resource_Certificate{Certificate: &resource.Certificate{}}}),
		[]*resource.Resource{{Name: "a", Kind: &resource.Resource_Backend{Backend: &resource.Backend{
			Endpoints: "e", Tls: &resource.BackendTLS{Hostname: "a", CertificateAuthorities: []string{"gone"}},
		}}}, endpoints("e", "198.18.1.1:443")})
	made, err := plan.New(resources)
	if err != nil {
		t.Fatal(err)
	}
	d := made.Decide(10443, plan.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: "a.example", Path: "/"}})
	if d.Status != 0 || len(d.Backends) != 1 || !slices.Equal(d.Backends[0].Endpoints, []netip.AddrPort{netip.MustParseAddrPort("198.18.1.1:443")}) {
		t.Errorf("decision = %+v", d)
	}
	if len(site.GetListener().GetCertificates()) != 1 {
		t.Error("the resource was modified")
	}
}
