// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// TestUpgradeHasTimeouts checks that timeouts of the rule apply until the upgrade.
func TestUpgradeHasTimeouts(t *testing.T) {
	port := freePort(t)
	rule, limited := toward("/request", "a"), toward("/backend", "a")
	rule.Timeouts = &resource.Timeouts{Request: 50}
	limited.Timeouts = &resource.Timeouts{BackendRequest: 50}
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, rule, limited)),
		backend("a", serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("switch") == "" {
				select {
				case <-done:
				case <-r.Context().Done():
				}
				return
			}
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "test")
			w.WriteHeader(http.StatusSwitchingProtocols)
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			pause(t.Context(), 200*time.Millisecond)
			_, _ = io.WriteString(conn, "late\n")
		})))...)
	for _, path := range []string{"/request", "/backend"} {
		for _, target := range []string{path, path + "?switch=1"} {
			conn, err := net.Dial("tcp", client127(port))
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n", target)
			reader := bufio.NewReader(conn)
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatalf("%s: %v", target, err)
			}
			switch want := http.StatusGatewayTimeout; {
			case target == path && response.StatusCode != want:
				t.Errorf("%s: %d; want %d", target, response.StatusCode, want)
			case target != path:
				// They do not apply after the upgrade.
				if line, err := reader.ReadString('\n'); response.StatusCode != 101 || line != "late\n" {
					t.Errorf("%s: %d, %q, %v", target, response.StatusCode, line, err)
				}
			}
			_ = conn.Close()
		}
	}
}

func TestBadStatus(t *testing.T) {
	port := freePort(t)
	address := rawBackend(t, answering("HTTP/1.1 099 None\r\nContent-Length: 0\r\n\r\n"))
	f := start(t, func(s *Settings) { s.Upstream.Balance.MaxRequests = 1 },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", address))...)
	for _, headers := range [][]string{nil, {"Connection: Upgrade", "Upgrade: test"}} {
		for range 3 {
			// Otherwise the second request would receive 503.
			if got := get(t, client(t, port, nil), "http://a/", headers...); got.StatusCode != 502 {
				t.Errorf("%v: %d; want 502", headers, got.StatusCode)
			}
		}
	}
	if active := f.table.Load().backend("a").Set.All()[0].Active(); active != 0 {
		t.Errorf("%d active requests; want 0", active)
	}
}

func TestNoContentType(t *testing.T) {
	port := freePort(t)
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
		backend("a", serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Content-Type"] = nil
			if kind := r.URL.Query().Get("type"); kind != "" {
				w.Header().Set("Content-Type", kind)
			}
			_, _ = io.WriteString(w, "<html><script>alert(1)</script>")
		})))...)
	for name, c := range map[string]*http.Client{
		"HTTP/1.1": client(t, port, nil), "HTTP/2": client(t, port, nil, (*http.Protocols).SetUnencryptedHTTP2),
	} {
		if got := get(t, c, "http://a/"); got.Header["Content-Type"] != nil {
			t.Errorf("%s: Content-Type %q; want none", name, got.Header["Content-Type"])
		}
		if got := get(t, c, "http://a/?type=text/plain").Header.Get("Content-Type"); got != "text/plain" {
			t.Errorf("%s: Content-Type %q; want text/plain", name, got)
		}
	}
}

// TestPathSpellings checks the table of docs/proxy.md.
func TestPathSpellings(t *testing.T) {
	port := freePort(t)
	statusOf := func(name string) string {
		return serve(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, name+" "+r.RequestURI) })
	}
	exact, moved, latin := toward("/caf%C3%A9", "guarded"), toward("/old", "open"), toward("/caf%E9", "guarded")
	exact.Match.Path.Kind = resource.PathMatch_EXACT
	moved.Filters = []*resource.Filter{{Kind: &resource.Filter_Rewrite{Rewrite: &resource.Rewrite{
		Path: &resource.PathChange{Kind: &resource.PathChange_ReplacePrefix{ReplacePrefix: "/new"}}}}}}
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil,
		exact, latin, toward("/admin", "guarded"), toward("/a b", "guarded"), toward("/50%25", "guarded"), moved, toward("/", "open"))),
		backend("guarded", statusOf("guarded")), backend("open", statusOf("open")))...)
	for target, want := range map[string]string{
		"/admin/x":           "guarded /admin/x",
		"/%61dmin/x":         "guarded /%61dmin/x",
		"/admin//x":          "guarded /admin//x",
		"/admin/%2fx":        "guarded /admin/%2fx",
		"//admin":            "guarded /admin",
		"///admin":           "guarded /admin",
		"/%2fadmin":          "guarded /admin",
		"/.//admin":          "guarded /admin",
		"/x/..//admin":       "guarded /admin",
		"/x//../admin":       "guarded /admin",
		"/x/%2e%2e//admin/":  "guarded /admin/",
		"http://a//admin":    "guarded /admin",
		"/admin/..//x":       "open /x",
		"/x//admin":          "open /x//admin",
		"/get/http://b//c?d": "open /get/http://b//c?d",
		"/.a//b":             "open /.a//b",
		"/a%20b/c":           "guarded /a%20b/c",
		"/caf%c3%a9":         "guarded /caf%c3%a9",
		"/caf%e9":            "guarded /caf%e9",
		"/caf%e8":            "open /caf%e8",
		"/50%25":             "guarded /50%25",
		"/old//x":            "open /new/x",
		"//old/x":            "open /new/x",
	} {
		conn, err := net.Dial("tcp", client127(port))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", target)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		text, err := io.ReadAll(response.Body)
		if got := string(text); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", target, got, err, want)
		}
		_ = conn.Close()
	}
}
