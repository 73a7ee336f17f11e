// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var (
	cases = flag.Int("cases", 600, "how many requests TestRandom draws")
	seed  = flag.Uint64("seed", 1, "of TestRandom")
)

// testCase is one of cases.yaml. What it leaves out is as in the case "plain".
type testCase struct {
	Name   string   `json:"name"`
	Method string   `json:"method"`
	Target string   `json:"target"`
	Host   string   `json:"host"`
	Fields []string `json:"fields"`
	Want   string   `json:"want"`
	H1     string   `json:"h1"`
	H2     string   `json:"h2"`
}

func TestCases(t *testing.T) {
	text, err := os.ReadFile("testdata/cases.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []testCase
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	for client, send := range clients {
		for _, each := range all {
			want := cmp.Or(map[bool]string{true: each.H2, false: each.H1}[client == "h2"], each.Want)
			got := send(t, w, request{
				Method: cmp.Or(each.Method, "GET"), Target: cmp.Or(each.Target, "/"), Host: cmp.Or(each.Host, public),
				Fields: each.Fields,
			})
			for _, p := range w.taken() {
				got = p.String()
				checkHeader(t, client+", "+each.Name, p)
			}
			if got != want {
				t.Errorf("%s, %s: %s; want %s", client, each.Name, got, want)
			}
		}
	}
}

// checkHeader: what says who the client is comes from the proxy.
func checkHeader(t *testing.T, name string, p parsed) {
	t.Helper()
	if got := p.header.Get("X-Forwarded-For"); got != "127.0.0.1" {
		t.Errorf("%s: X-Forwarded-For %q", name, got)
	}
	for field := range p.header {
		switch {
		case strings.Contains(field, "_"), field == "Forwarded", field == "X-Real-Ip", field == "X-Original-Url", field == "X-Forwarded-Port":
			t.Errorf("%s: the backend got the client's %s", name, field)
		}
	}
}

// TestRandom draws requests, and holds each that reaches a backend to belong there.
func TestRandom(t *testing.T) {
	w, random := newWorld(t), rand.New(rand.NewPCG(*seed, 0))
	names := []string{"h1", "h1 TLS", "h2"}
	reached := map[string]int{}
	for i := range *cases {
		r := draw(random)
		client := names[i%len(names)]
		status := clients[client](t, w, r)
		if status == "no answer" {
			t.Errorf("%s %+q: no answer", client, r)
		}
		for _, p := range w.taken() {
			reached[p.backend]++
			if p.backend != belongs(p) {
				t.Errorf("%s %+q, answered with %s: %s got %s, which belongs to %s", client, r, status, p.backend, p, belongs(p))
			}
			checkHeader(t, fmt.Sprintf("%s %+q", client, r), p)
		}
	}
	t.Logf("reached: %v of %d", reached, *cases)
	if len(reached) != 3 {
		t.Errorf("requests reached %v; want all three backends", reached)
	}
}

// draw makes a request of parts that were known to confuse servers.
func draw(random *rand.Rand) request {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	elements := make([]string, 1+random.IntN(4))
	for i := range elements {
		elements[i] = pick("admin", "admin", "public", ".", "..", "%2e%2e", ".%2E", "..;", "..;x", "..%5c", "%5c..", "", "a%2Fadmin", "%61dmin",
			"x;y", "%00", "é", "%25%32e", "x y", "\x7f", "#", "?", "*")
	}
	target := pick("/", "/", "/", "/", "", "//", "http://"+internal+"/", "https://"+public+"/") + strings.Join(elements, "/")
	r := request{
		Method: pick("GET", "GET", "GET", "HEAD", "POST", "OPTIONS", "get", "G T", "TRACE"),
		Target: target + pick("", "", "", "?x=/admin", "? HTTP/1.0", "?#"),
		Host: pick(public, public, public, public, public, public, internal, internal, internal, strings.ToUpper(public), public+":443", public+".", internal+"@"+public,
			public+"/", "", public+", "+internal),
	}
	for range random.IntN(3) {
		r.Fields = append(r.Fields, pick("host: "+internal, "host: "+public, "x-forwarded-host: "+internal, "x-original-url: /admin",
			"x-rewrite-url: /admin", "x_forwarded_for: 203.0.113.1", "x-forwarded-for: 203.0.113.1", "forwarded: host="+internal,
			"connection: x-forwarded-for", "connection: host", "upgrade: h2c", "content-length: 0", "transfer-encoding: chunked", "x-a: b"))
	}
	return r
}
