// SPDX-License-Identifier: Apache-2.0

package fuzz

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
	cases = flag.Int("cases", 200, "number of requests of TestRandom for each kind of backend")
	seed  = flag.Uint64("seed", 1, "seed of TestRandom")
)

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
	for kind, backends := range kinds(t) {
		w := newWorld(t, backends)
		for client, send := range clients {
			for _, each := range all {
				want := cmp.Or(map[bool]string{true: each.H2, false: each.H1}[client == "h2"], each.Want)
				got := send(t, w, request{
					Method: cmp.Or(each.Method, "GET"), Target: cmp.Or(each.Target, "/"), Host: cmp.Or(each.Host, public),
					Fields: each.Fields,
				})
				name := client + " to " + kind + ", " + each.Name
				for _, p := range w.taken() {
					got = p.String()
					checkHeader(t, name, p)
				}
				if got != want {
					t.Errorf("%s: %s; want %s", name, got, want)
				}
			}
		}
	}
}

// checkHeader checks that the headers about the client are set by the proxy.
func checkHeader(t *testing.T, name string, p parsed) {
	t.Helper()
	for _, field := range []string{"X-Forwarded-For", "X-Real-Ip"} {
		if got := p.header.Get(field); got != "127.0.0.1" {
			t.Errorf("%s: %s %q", name, field, got)
		}
	}
	for field := range p.header {
		switch {
		case strings.Contains(field, "_"), field == "Forwarded", field == "X-Original-Url":
			t.Errorf("%s: the backend received %s of the client", name, field)
		}
	}
}

// TestRandom checks that each random request that reaches a backend is unmodified and at the right one.
func TestRandom(t *testing.T) {
	for kind, backends := range kinds(t) {
		t.Run(kind, func(t *testing.T) { sendRandom(t, newWorld(t, backends)) })
	}
}

func sendRandom(t *testing.T, w *world) {
	t.Helper()
	random := rand.New(rand.NewPCG(*seed, 0))
	names := []string{"h1", "h1 TLS", "h2"}
	reached := map[string]int{}
	for i := range *cases {
		r := draw(random)
		client := names[i%len(names)]
		status := clients[client](t, w, r)
		name := fmt.Sprintf("%s %.400q, answered with %s", client, fmt.Sprint(r), status)
		if status == "no answer" {
			t.Errorf("%s: no response", name)
		}
		taken := w.taken()
		if len(taken) > 1 {
			t.Errorf("%s: backends received %d requests: %v", name, len(taken), taken)
		}
		for _, p := range taken {
			reached[p.backend]++
			if p.backend != belongs(p) {
				t.Errorf("%s: %s received %s, which belongs to %s", name, p.backend, p, belongs(p))
			}
			if p.method != r.Method || p.body != r.Body {
				t.Errorf("%s: %s received method %s and %d bytes; want %s and %d", name, p.backend, p.method, len(p.body), r.Method, len(r.Body))
			}
			checkHeader(t, name, p)
		}
	}
	t.Logf("requests reached: %v of %d", reached, *cases)
	if len(reached) != 3 {
		t.Errorf("requests reached %v; want all three backends", reached)
	}
}

// draw returns a random request, composed of parts that are known to confuse servers.
func draw(random *rand.Rand) request {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	elements := make([]string, 1+random.IntN(4))
	for i := range elements {
		elements[i] = pick("admin", "admin", "public", "guarded", "asked", "rewritten", ".", "..", "%2e%2e", ".%2E", "..;", "..;x", "..%5c", "%5c..", "", "a%2Fadmin", "%61dmin",
			"x;y", "%00", "é", "%25%32e", "x y", "\x7f", "#", "?", "*")
	}
	target := pick("/", "/", "/", "/", "", "//", "http://"+internal+"/", "https://"+public+"/") + strings.Join(elements, "/")
	r := request{
		Method: pick("GET", "GET", "POST", "HEAD", "POST", "OPTIONS", "get", "G T", "TRACE"),
		Target: target + pick("", "", "", "?x=/admin", "? HTTP/1.0", "?#"),
		Host: pick(public, public, public, public, public, public, internal, internal, internal, strings.ToUpper(public), public+":443", public+".", internal+"@"+public,
			public+"/", "", public+", "+internal),
	}
	for range random.IntN(3) {
		r.Fields = append(r.Fields, pick("host: "+internal, "host: "+public, "x-forwarded-host: "+internal, "x-original-url: /admin",
			"x-rewrite-url: /admin", "x_forwarded_for: 203.0.113.1", "x-forwarded-for: 203.0.113.1", "forwarded: host="+internal,
			"connection: x-forwarded-for", "connection: host", "upgrade: h2c", "content-length: 0", "transfer-encoding: chunked", "x-a: b"))
	}
	if fields := strings.Join(r.Fields, ""); r.Method == "POST" && !strings.Contains(fields, "content-") && !strings.Contains(fields, "transfer-") {
		// A request inside the body must not be parsed as a request.
		r.Body = strings.Repeat(pick("a", "0\r\n\r\n", "GET /admin HTTP/1.1\r\nHost: "+internal+"\r\n\r\n"), 1+random.IntN(100))
		r.Chunked = random.IntN(2) == 0
	}
	return r
}
