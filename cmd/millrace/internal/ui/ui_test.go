// SPDX-License-Identifier: Apache-2.0

package ui_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/uitest"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
)

const token = "0123456789abcdef"

func serve(t *testing.T, source ui.Source) (*httptest.Server, context.CancelFunc) {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	handler, err := ui.New(source, ui.Options{Token: token, Hosts: []string{server.Listener.Addr().String()}, Interval: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	server.Config.Handler = handler
	server.Start()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		handler.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		server.Close()
	})
	return server, cancel
}

func small() *view.State { return uitest.Cluster(uitest.Size{Nodes: 3, VIPs: 4, Zones: 1}) }

func get(t *testing.T, server *httptest.Server, path string, change func(*http.Request)) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	if change != nil {
		change(request)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

func TestAccess(t *testing.T) {
	server, _ := serve(t, uitest.NewSource(small()))
	port := server.URL[strings.LastIndex(server.URL, ":"):]
	authorize := func(value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", value) }
	}
	host := func(value string) func(*http.Request) { return func(r *http.Request) { r.Host = value } }
	const details = "/api/details?id=node/node-001"
	for name, test := range map[string]struct {
		path   string
		change func(*http.Request)
		want   int
	}{
		"with the token":           {details, nil, http.StatusOK},
		"without a token":          {details, func(r *http.Request) { r.Header.Del("Authorization") }, http.StatusUnauthorized},
		"with another token":       {details, authorize("Bearer 0123456789abcdee"), http.StatusUnauthorized},
		"with a part of the token": {details, authorize("Bearer 0123"), http.StatusUnauthorized},
		"with another scheme":      {details, authorize("Basic " + token), http.StatusUnauthorized},
		"with the token in the URL": {details + "&token=" + token, func(r *http.Request) {
			r.Header.Del("Authorization")
		}, http.StatusUnauthorized},
		"with the token as a cookie": {details, func(r *http.Request) {
			r.Header.Del("Authorization")
			r.AddCookie(&http.Cookie{Name: "token", Value: token})
		}, http.StatusUnauthorized},
		"events without a token":       {"/api/events", authorize(""), http.StatusUnauthorized},
		"traces without a token":       {"/api/trace", authorize(""), http.StatusUnauthorized},
		"files need none":              {"/", authorize(""), http.StatusOK},
		"another host (DNS rebinding)": {"/", host("attacker.example" + port), http.StatusMisdirectedRequest},
		"another port":                 {"/", host("127.0.0.1:1"), http.StatusMisdirectedRequest},
		"another host with the token":  {details, host("attacker.example"), http.StatusMisdirectedRequest},
		"a row that is not there":      {"/api/details?id=node/none", nil, http.StatusNotFound},
		"a post":                       {details, func(r *http.Request) { r.Method = http.MethodPost }, http.StatusMethodNotAllowed},
		"a file that is not there":     {"/../ui.go", nil, http.StatusNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			if response := get(t, server, test.path, test.change); response.StatusCode != test.want {
				body, _ := io.ReadAll(response.Body)
				t.Errorf("%s: %s %.200s, want %d", test.path, response.Status, body, test.want)
			}
		})
	}
}

func TestHeaders(t *testing.T) {
	server, _ := serve(t, uitest.NewSource(small()))
	for _, path := range []string{"/", "/main.js", "/api/details?id=node/node-001", "/none", "/api/none"} {
		header := get(t, server, path, nil).Header
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
			"Cross-Origin-Resource-Policy": "same-origin", "X-Frame-Options": "DENY",
		} {
			if got := header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
		if policy := header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'self'; ") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: the policy is %q", path, policy)
		}
		if len(header.Values("Set-Cookie"))+len(header.Values("Access-Control-Allow-Origin")) > 0 {
			t.Errorf("%s: %v", path, header)
		}
	}
}

func TestNoToken(t *testing.T) {
	if _, err := ui.New(uitest.NewSource(small()), ui.Options{Hosts: []string{"127.0.0.1:1"}}); err == nil {
		t.Error("a handler without a token was created")
	}
	if a, b := ui.NewToken(), ui.NewToken(); len(a) != 64 || a == b {
		t.Errorf("tokens are %q and %q", a, b)
	}
}

// The files refer to no other host, and create no element from text.
func TestFiles(t *testing.T) {
	unsafe := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\('style'|style="|<script>|javascript:|\bon[a-z]+="`)
	hosts := regexp.MustCompile(`https?://[^\s'"]+`)
	seen := 0
	err := filepath.WalkDir("static", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if found := unsafe.Find(text); found != nil {
			t.Errorf("%s has %s", path, found)
		}
		for _, found := range hosts.FindAllString(string(text), -1) {
			if found != "http://www.w3.org/2000/svg" {
				t.Errorf("%s names %s", path, found)
			}
		}
		seen++
		return err
	})
	if err != nil || seen < 9 {
		t.Fatalf("%d files: %v", seen, err)
	}
}

func follow(t *testing.T, server *httptest.Server) func() (view.Change, error) {
	t.Helper()
	response := get(t, server, "/api/events", nil)
	if kind := response.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatalf("%s, %s", response.Status, kind)
	}
	reader := bufio.NewReader(response.Body)
	return func() (change view.Change, err error) {
		for {
			line, err := reader.ReadString('\n')
			if err != nil {
				return change, err
			}
			if data, is := strings.CutPrefix(line, "data: "); is {
				return change, json.Unmarshal([]byte(data), &change)
			}
		}
	}
}

// Pages get the whole state first, then only changes, then the end.
func TestEvents(t *testing.T) {
	source := uitest.NewSource(small())
	server, end := serve(t, source)
	next := follow(t, server)
	first, err := next()
	if err != nil || !first.Full || first.Head == nil || len(first.Nodes.Set) != 3 || len(first.Services.Set) != 4 || len(first.Routers.Set) != 2 {
		t.Fatalf("the first event is %+v: %v", first, err)
	}
	changed := small()
	changed.Input.LBNodeReports[1].Status.Sessions[0].State = "Idle"
	source.Set(changed)
	for {
		change, err := next()
		if err != nil {
			t.Fatal(err)
		}
		if change.Nodes == nil {
			continue
		}
		if change.Full || len(change.Nodes.Set) != 1 || change.Services != nil || len(change.Routers.Set) != 1 {
			t.Fatalf("the change is %+v", change)
		}
		break
	}
	end()
	for err == nil {
		_, err = next()
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
}

func TestQuestions(t *testing.T) {
	server, _ := serve(t, uitest.NewSource(small()))
	packet := func(source, destination, protocol string) string {
		return "/api/trace?" + url.Values{"source": {source}, "destination": {destination}, "protocol": {protocol}}.Encode()
	}
	for path, want := range map[string]string{
		packet("198.51.100.7:40000", "203.0.113.1:80", "tcp"): "hops",
		packet("198.51.100.7", "203.0.113.1:80", "tcp"):       "source: ",
		packet("198.51.100.7:1", "--node=x", "tcp"):           "destination: ",
		packet("198.51.100.7:1", "[2001:db8::1]:80", "tcp"):   "both must be IPv4 or both IPv6",
		packet("198.51.100.7:1", "203.0.113.1:80", "icmp"):    "must be tcp, udp or sctp",
		"/api/why?service=team-01/web&at=now&around=5m":       "team-01/web",
		"/api/why?service=web":                                "must be namespace/name",
		"/api/why?service=a/b&around=900h":                    "must be a duration of at most",
		"/api/ask?id=service/team-01/web":                     "203.0.113.0",
		"/api/details?id=service/team-01/web":                 "198.18.100.1",
		"/api/details?id=router/tor-a":                        "Established",
	} {
		body, err := io.ReadAll(get(t, server, path, nil).Body)
		if err != nil || !strings.Contains(string(body), want) {
			t.Errorf("%s: no %q in %.300s (%v)", path, want, body, err)
		}
	}
}

func TestLevels(t *testing.T) {
	built := view.Build(uitest.Cluster(uitest.Size{Nodes: 4, VIPs: 6, Zones: 2, Down: 1, NotReady: 1, Unserved: 1}))
	var levels []view.Level
	for _, node := range built.Nodes {
		levels = append(levels, node.Level)
	}
	if want := []view.Level{view.Warning, view.Bad, view.Good, view.Good}; !slices.Equal(levels, want) {
		t.Errorf("nodes are %v, want %v: one with a session down, one without a ready agent", levels, want)
	}
}
