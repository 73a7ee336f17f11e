// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func fullPath(p string) *resource.PathChange {
	return &resource.PathChange{Kind: &resource.PathChange_ReplaceFullPath{ReplaceFullPath: p}}
}

func prefixPath(p string) *resource.PathChange {
	return &resource.PathChange{Kind: &resource.PathChange_ReplacePrefix{ReplacePrefix: p}}
}

func redirectTo(r *resource.Redirect) *resource.Filter {
	return &resource.Filter{Kind: &resource.Filter_Redirect{Redirect: r}}
}

func rewriteTo(r *resource.Rewrite) *resource.Filter {
	return &resource.Filter{Kind: &resource.Filter_Rewrite{Rewrite: r}}
}

func TestRedirect(t *testing.T) {
	port := freePort(t)
	odd := httpListener("odd", freePort(t), nil)
	odd.GetListener().Port = 8080
	rules := []*resource.Rule{
		toward("/plain", "", redirectTo(&resource.Redirect{})),
		toward("/scheme", "", redirectTo(&resource.Redirect{Scheme: "https", Status: 301})),
		toward("/host", "", redirectTo(&resource.Redirect{Hostname: "other.example.com", Status: 308})),
		toward("/port", "", redirectTo(&resource.Redirect{Port: 8443, Scheme: "https", Status: 307})),
		toward("/port80", "", redirectTo(&resource.Redirect{Port: 80, Status: 303})),
		toward("/full", "", redirectTo(&resource.Redirect{Path: fullPath("/new")})),
		toward("/prefix", "", redirectTo(&resource.Redirect{Path: prefixPath("/new")})),
		toward("/gone", "", redirectTo(&resource.Redirect{Path: prefixPath("/")})),
		toward("/url", "", redirectTo(&resource.Redirect{Location: "https://other.example.com/a?b#c", Status: 301})),
		toward("/path", "", redirectTo(&resource.Redirect{Location: "/app", Hostname: "unused.example.com"})),
	}
	start(t, nil, httpListener("l", port, nil), odd, routes("r", "l", nil, rules...), routes("ro", "odd", nil, rules...))
	for _, tc := range []struct {
		port             uint32
		target, location string
		status           int
	}{
		{port, "/plain/a?b=c", "http://a.example.com/plain/a?b=c", 302},
		{odd.GetListener().TargetPort, "/plain", "http://a.example.com:8080/plain", 302},
		{odd.GetListener().TargetPort, "/scheme", "https://a.example.com/scheme", 301},
		{port, "/scheme", "https://a.example.com/scheme", 301},
		{port, "/host/x%2Fy", "http://other.example.com/host/x%2Fy", 308},
		{port, "/port", "https://a.example.com:8443/port", 307},
		{odd.GetListener().TargetPort, "/port80", "http://a.example.com/port80", 303},
		{port, "/full/x?q", "http://a.example.com/new?q", 302},
		{port, "/prefix", "http://a.example.com/new", 302},
		{port, "/prefix/", "http://a.example.com/new/", 302},
		{port, "/prefix/x%2Fy", "http://a.example.com/new/x%2Fy", 302},
		{port, "/gone", "http://a.example.com/", 302},
		{port, "/gone/x", "http://a.example.com/x", 302},
		{port, "/url/x?q", "https://other.example.com/a?b#c", 301},
		{port, "/path/x?q", "/app", 302},
	} {
		got := get(t, client(t, tc.port, nil), "http://A.example.com:1234"+tc.target)
		if got.StatusCode != tc.status || got.Header.Get("Location") != tc.location {
			t.Errorf("%s: %d %s; want %d %s", tc.target, got.StatusCode, got.Header.Get("Location"), tc.status, tc.location)
		}
	}
}

func TestRewrite(t *testing.T) {
	port := freePort(t)
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil,
		toward("/host", "a", rewriteTo(&resource.Rewrite{Hostname: "other.example.com"})),
		toward("/full", "a", rewriteTo(&resource.Rewrite{Path: fullPath("/new")})),
		toward("/prefix/", "a", rewriteTo(&resource.Rewrite{Path: prefixPath("/new/")})),
		toward("/gone", "a", rewriteTo(&resource.Rewrite{Path: prefixPath("")})),
		toward("/", "a", rewriteTo(&resource.Rewrite{Path: prefixPath("/below")})),
	)), backend("a", serve(t, echo("a"))))...)
	c := client(t, port, nil)
	for target, want := range map[string]string{
		"/host?a":        "GET /host?a other.example.com",
		"/full/x?a":      "GET /new?a a.example.com",
		"/prefix":        "GET /new/ a.example.com",
		"/prefix/":       "GET /new/ a.example.com",
		"/prefix/x%2Fy":  "GET /new/x%2Fy a.example.com",
		"/gone/x":        "GET /x a.example.com",
		"/gone":          "GET / a.example.com",
		"/x":             "GET /below/x a.example.com",
		"/y/../prefix/z": "GET /new/z a.example.com",
	} {
		if got := get(t, c, "http://a.example.com"+target); !strings.HasPrefix(got.body, want+"\n") {
			t.Errorf("the backend received %s as %q; want %q", target, strings.SplitN(got.body, "\n", 2)[0], want)
		}
	}
}

func TestHeaders(t *testing.T) {
	port := freePort(t)
	change := &resource.HeaderChange{
		Set:    []*resource.Header{{Name: "x-set", Value: "new"}, {Name: "x-forwarded-for", Value: "hidden"}},
		Add:    []*resource.Header{{Name: "x-add", Value: "more"}},
		Remove: []string{"x-remove"},
	}
	rule := toward("/", "a", &resource.Filter{Kind: &resource.Filter_RequestHeaders{RequestHeaders: change}},
		&resource.Filter{Kind: &resource.Filter_ResponseHeaders{ResponseHeaders: change}})
	rule.Backends[0].Filters = []*resource.Filter{{Kind: &resource.Filter_RequestHeaders{RequestHeaders: &resource.HeaderChange{
		Add: []*resource.Header{{Name: "x-add", Value: "of the backend"}, {Name: "host", Value: "set.example.com"}},
	}}}}
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, rule)),
		backend("a", serve(t, func(w http.ResponseWriter, r *http.Request) {
			for _, name := range []string{"X-Set", "X-Add", "X-Remove"} {
				w.Header().Set(name, "old")
			}
			echo("a")(w, r)
		})))...)
	got := get(t, client(t, port, nil), "http://a.example.com/", "X-Set: old", "X-Add: old", "X-Remove: old")
	for _, want := range []string{
		"GET / set.example.com\n", "X-Set: new\r\n", "X-Add: old\r\n", "X-Add: more\r\n", "X-Add: of the backend\r\n", "X-Forwarded-For: hidden\r\n",
	} {
		if !strings.Contains(got.body, want) {
			t.Errorf("the backend received\n%s\nwant %q", got.body, want)
		}
	}
	if strings.Contains(got.body, "X-Remove") || got.Header.Get("X-Remove") != "" {
		t.Error("X-Remove was not removed")
	}
	if set, add := got.Header["X-Set"], strings.Join(got.Header["X-Add"], " "); len(set) != 1 || set[0] != "new" || add != "old more" {
		t.Errorf("the client received X-Set %v and X-Add %q; want new, and old more", set, add)
	}
}

func TestMirror(t *testing.T) {
	port := freePort(t)
	copies := make(chan string, 10)
	mirror := func(w http.ResponseWriter, r *http.Request) {
		rw := &recording{ResponseWriter: w}
		echo("m")(rw, r)
		copies <- rw.text.String()
	}
	to := func(name string, n, of uint32) *resource.Filter {
		return &resource.Filter{Kind: &resource.Filter_Mirror{Mirror: &resource.Mirror{Backend: name, Numerator: n, Denominator: of}}}
	}
	start(t, func(s *Settings) { s.MaxMirrorBytes = 10 }, all(
		one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a", to("m1", 0, 0), to("m2", 1, 1), to("never", 0, 1), to("dead", 0, 0)))),
		backend("a", serve(t, echo("a"))), backend("m1", serve(t, mirror)), backend("m2", serve(t, mirror)),
		backend("never", serve(t, mirror)), backend("dead"),
	)...)
	c := client(t, port, nil)
	for _, body := range []string{"", "short"} {
		method := http.MethodPost
		if got := send(t, c, method, "http://a.example.com/x?y", body, "X-A: 1"); got.Header.Get("X-Backend") != "a" || !strings.HasSuffix(got.body, "\n"+body) {
			t.Fatalf("body %q: response from %q: %s", body, got.Header.Get("X-Backend"), got.body)
		}
		for range 2 {
			select {
			case got := <-copies:
				if !strings.HasPrefix(got, "POST /x?y a.example.com\n") || !strings.Contains(got, "X-A: 1\r\n") || !strings.HasSuffix(got, "\n"+body) {
					t.Errorf("mirrored request:\n%s", got)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("timeout while waiting for a mirrored request")
			}
		}
	}
	if got := send(t, c, http.MethodPost, "http://a.example.com/", "longer than ten"); !strings.HasSuffix(got.body, "longer than ten") {
		t.Errorf("response to a long body: %s", got.body)
	}
	if len(copies) > 0 {
		t.Errorf("unexpected mirrored request: %s", <-copies)
	}
}

type recording struct {
	http.ResponseWriter
	text strings.Builder
}

func (r *recording) Write(b []byte) (int, error) {
	r.text.Write(b)
	return r.ResponseWriter.Write(b)
}

func TestCORS(t *testing.T) {
	port := freePort(t)
	filter := func(c *resource.CORS) *resource.Filter { return &resource.Filter{Kind: &resource.Filter_Cors{Cors: c}} }
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil,
		toward("/some", "a", filter(&resource.CORS{
			AllowOrigins: []string{"https://a.example.com", "https://*.example.net"}, AllowCredentials: true,
			AllowMethods: []string{"GET", "PUT"}, AllowHeaders: []string{"X-A", "X-B"}, ExposeHeaders: []string{"X-C"}, MaxAgeSeconds: 60,
		})),
		toward("/label", "a", filter(&resource.CORS{AllowOrigins: []string{"https://*.example.net"}, OneLabel: true})),
		toward("/all", "a", filter(&resource.CORS{AllowOrigins: []string{"*"}, AllowMethods: []string{"*"}, AllowHeaders: []string{"*"}})),
		toward("/credentials", "a", filter(&resource.CORS{
			AllowOrigins: []string{"*"}, AllowMethods: []string{"*"}, AllowHeaders: []string{"*"}, ExposeHeaders: []string{"*"}, AllowCredentials: true,
		})),
	)), backend("a", serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "the backend's own")
		echo("a")(w, r)
	})))...)
	c := client(t, port, nil)
	names := []string{"Allow-Origin", "Allow-Credentials", "Allow-Methods", "Allow-Headers", "Expose-Headers", "Max-Age"}
	for _, tc := range []struct {
		method, path, origin, want string
	}{
		{"OPTIONS", "/some", "https://a.example.com", "https://a.example.com|true|GET, PUT|X-A, X-B|X-C|60"},
		{"OPTIONS", "/some", "https://a.b.example.net", "https://a.b.example.net|true|GET, PUT|X-A, X-B|X-C|60"},
		{"OPTIONS", "/some", "https://example.net", "|||||"},
		{"OPTIONS", "/some", "https://a.example.net.evil.example.org", "|||||"},
		{"OPTIONS", "/some", "https://evil.example.org/.example.net", "|||||"},
		{"OPTIONS", "/some", "http://a.example.com", "|||||"},
		{"GET", "/some", "https://a.example.com", "https://a.example.com|true|||X-C|"},
		{"GET", "/some", "https://b.example.com", "|||||"},
		{"GET", "/some", "", "|||||"},
		{"GET", "/label", "https://a.example.net", "https://a.example.net|||||"},
		{"GET", "/label", "https://a.b.example.net", "|||||"},
		{"OPTIONS", "/all", "https://x", "*||*|*||"},
		{"GET", "/all", "https://x", "*|||||"},
		{"OPTIONS", "/credentials", "https://x", "https://x|true|PUT|X-Asked||"},
		{"GET", "/credentials", "https://x", "https://x|true||||"},
	} {
		headers := []string{"Origin: " + tc.origin}
		if tc.origin == "" {
			headers = nil
		}
		if tc.method == "OPTIONS" {
			headers = append(headers, "Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: X-Asked")
		}
		reply := send(t, c, tc.method, "http://a.example.com"+tc.path, "", headers...)
		var got []string
		for _, name := range names {
			got = append(got, strings.Join(reply.Header["Access-Control-"+name], "; "))
		}
		if joined := strings.Join(got, "|"); joined != tc.want {
			t.Errorf("%s %s from %q: %s; want %s", tc.method, tc.path, tc.origin, joined, tc.want)
		}
		if preflight := tc.method == "OPTIONS"; preflight != (reply.Header.Get("X-Backend") == "") {
			t.Errorf("%s %s: answered by backend %q", tc.method, tc.path, reply.Header.Get("X-Backend"))
		}
	}
}
