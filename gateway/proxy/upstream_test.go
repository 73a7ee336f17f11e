// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// TestConnectionRefusedIsRetried checks that an unreachable endpoint fails no request.
func TestConnectionRefusedIsRetried(t *testing.T) {
	port := freePort(t)
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
		backend("a", client127(freePort(t)), serve(t, echo("a"))))...)
	c := client(t, port, nil)
	for i := range 30 {
		if got := send(t, c, http.MethodPost, "http://a/", "body"); got.StatusCode != 200 || !strings.HasSuffix(got.body, "\nbody") {
			t.Fatalf("request %d: %d\n%s", i, got.StatusCode, got.body)
		}
	}
}

func TestRetry(t *testing.T) {
	port := freePort(t)
	var requests atomic.Int32
	handler := func(w http.ResponseWriter, r *http.Request) {
		n := requests.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case strings.HasPrefix(r.URL.Path, "/cut") && n < 3:
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		case strings.HasPrefix(r.URL.Path, "/slow") && n < 3:
			select {
			case <-r.Context().Done():
			case <-time.After(10 * time.Second):
			}
		case n < 3:
			w.WriteHeader(503)
		}
	}
	retry := &resource.Retry{Attempts: 2, Statuses: []uint32{503}, Backoff: 1}
	status, cut, slow, once, limited := toward("/status", "a"), toward("/cut", "a"), toward("/slow", "a"), toward("/once", "a"), toward("/slow-limited", "a")
	status.Retry, cut.Retry, slow.Retry = retry, retry, retry
	slow.Timeouts = &resource.Timeouts{BackendRequest: 100}
	limited.Timeouts = &resource.Timeouts{Request: 100}
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, status, cut, slow, once, limited)),
		backend("a", serve(t, handler), serve(t, handler)))...)
	c := client(t, port, nil)
	for _, tc := range []struct {
		method, path, body string
		status             int
		requests           int32
	}{
		{"GET", "/status", "", 200, 3},
		{"POST", "/status", "", 200, 3},
		{"POST", "/status", "body", 503, 1},
		{"GET", "/once", "", 503, 1},
		{"GET", "/cut", "", 200, 3},
		{"POST", "/cut", "body", 502, 1},
		{"GET", "/slow", "", 200, 3},
		{"POST", "/slow", "body", 504, 1},
		{"GET", "/slow-limited", "", 504, 1},
	} {
		requests.Store(0)
		got := send(t, c, tc.method, "http://a"+tc.path, tc.body)
		if got.StatusCode != tc.status || requests.Load() != tc.requests {
			t.Errorf("%s %s %q: %d after %d requests; want %d after %d", tc.method, tc.path, tc.body,
				got.StatusCode, requests.Load(), tc.status, tc.requests)
		}
	}
}

func TestEndpointsChange(t *testing.T) {
	port := freePort(t)
	addresses := []string{serve(t, echo("0")), serve(t, echo("1")), serve(t, echo("2"))}
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", addresses...))...)
	stop := make(chan struct{})
	var wait sync.WaitGroup
	var served atomic.Int32
	for range 4 {
		c := client(t, port, nil)
		wait.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				response, err := c.Get("http://a/")
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				if response.StatusCode != 200 {
					t.Errorf("status %d during endpoint changes", response.StatusCode)
				}
				served.Add(1)
			}
		})
	}
	for i := range 60 {
		f.change(endpoints("a/endpoints", addresses[i%3:i%3+1]...))
		for before := served.Load(); served.Load() < before+8 && !t.Failed(); {
			runtime.Gosched()
		}
	}
	close(stop)
	wait.Wait()

	draining := endpoints("a/endpoints", addresses...)
	draining.GetEndpoints().Endpoints[0].Draining = true
	f.change(draining)
	c := client(t, port, nil)
	for range 50 {
		if got := get(t, c, "http://a/"); got.Header.Get("X-Backend") == "0" {
			t.Fatal("a draining endpoint received a new request")
		}
	}
}

func TestWeights(t *testing.T) {
	port := freePort(t)
	rule := toward("/", "a")
	rule.Backends = []*resource.WeightedBackend{{Backend: "a", Weight: 60}, {Backend: "b", Weight: 0}, {Backend: "", Weight: 20}, {Backend: "c", Weight: 20}}
	none := toward("/none", "a")
	none.Backends[0].Weight = 0
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, none, rule)),
		backend("a", serve(t, echo("a"))), backend("b", serve(t, echo("b"))), backend("c", serve(t, echo("c"))))...)
	c := client(t, port, nil)
	counts := map[string]int{}
	for range 2000 {
		got := get(t, c, "http://a/")
		counts[fmt.Sprint(got.StatusCode, got.Header.Get("X-Backend"))]++
	}
	for key, want := range map[string]int{"200a": 1200, "500": 400, "200c": 400} {
		if n := counts[key]; n < want-110 || n > want+110 {
			t.Errorf("%s: %d of 2000; want about %d (all: %v)", key, n, want, counts)
		}
	}
	if len(counts) != 3 {
		t.Errorf("responses %v; want three kinds", counts)
	}
	if got := get(t, c, "http://a/none"); got.StatusCode != 500 {
		t.Errorf("without a weight above 0: %d; want 500", got.StatusCode)
	}
}

func TestSession(t *testing.T) {
	port := freePort(t)
	addresses := []string{serve(t, echo("0")), serve(t, echo("1")), serve(t, echo("2")), serve(t, echo("3"))}
	cookie, header, short := toward("/cookie", "a"), toward("/header", "a"), toward("/short", "a")
	cookie.SessionPersistence = &resource.SessionPersistence{SessionName: "s", AbsoluteTimeout: 3_600_000, Permanent: true}
	cookie.Backends = append(cookie.Backends, &resource.WeightedBackend{Backend: "b", Weight: 1})
	header.SessionPersistence = &resource.SessionPersistence{Kind: resource.SessionPersistence_HEADER, SessionName: "X-Session"}
	short.SessionPersistence = &resource.SessionPersistence{SessionName: "s", AbsoluteTimeout: 1}
	resources := all(one(httpListener("l", port, nil), routes("r", "l", nil, cookie, header, short)),
		backend("a", addresses[:2]...), backend("b", addresses[2:]...))
	f := start(t, nil, resources...)
	c := client(t, port, nil)

	follow := func(name string, first reply, again func() reply) {
		for range 20 {
			got := again()
			if got.Header.Get("X-Backend") != first.Header.Get("X-Backend") {
				t.Fatalf("%s: endpoint %s; want %s of the session", name, got.Header.Get("X-Backend"), first.Header.Get("X-Backend"))
			}
			if len(got.Cookies()) > 0 || got.Header.Get("X-Session") != "" {
				t.Errorf("%s: the session cookie was sent again: %v", name, got.Header)
			}
		}
	}
	first := get(t, c, "http://a/cookie")
	if len(first.Cookies()) != 1 || first.Cookies()[0].Name != "s" || first.Cookies()[0].MaxAge < 3500 || !first.Cookies()[0].HttpOnly {
		t.Fatalf("cookies = %v; want one of an hour", first.Cookies())
	}
	value := first.Cookies()[0].Value
	follow("cookie", first, func() reply { return get(t, c, "http://a/cookie", "Cookie: s="+value) })
	token := get(t, c, "http://a/header")
	follow("header", token, func() reply { return get(t, c, "http://a/header", "X-Session: "+token.Header.Get("X-Session")) })

	for _, wrong := range []string{"", "x", value[1:], strings.Repeat("A", len(value))} {
		if got := get(t, c, "http://a/cookie", "Cookie: s="+wrong); got.StatusCode != 200 || len(got.Cookies()) != 1 {
			t.Errorf("cookie %q: %d and %v; want 200 and a new session", wrong, got.StatusCode, got.Cookies())
		}
	}
	brief := get(t, c, "http://a/short").Cookies()[0].Value
	for deadline := time.Now().Add(10 * time.Second); len(get(t, c, "http://a/short", "Cookie: s="+brief).Cookies()) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the session does not expire")
		}
	}
	f.change(endpoints("a/endpoints"), endpoints("b/endpoints", serve(t, echo("4"))))
	for {
		got := get(t, c, "http://a/cookie", "Cookie: s="+value)
		if got.StatusCode == 503 {
			continue
		}
		if got.Header.Get("X-Backend") != "4" || len(got.Cookies()) != 1 {
			t.Errorf("after the removal of its endpoint: endpoint %s, cookies %v; want 4 and a new session", got.Header.Get("X-Backend"), got.Cookies())
		}
		break
	}
}

func TestConnectionsAreReused(t *testing.T) {
	port := freePort(t)
	var accepted atomic.Int32
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: echo("a"), ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			accepted.Add(1)
		}
	}}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), backend("a", listener.Addr().String()))...)
	var wait sync.WaitGroup
	const clients = 20
	for range clients {
		c := client(t, port, nil)
		wait.Go(func() {
			for range 20 {
				response, err := c.Get("http://a/")
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
		})
	}
	wait.Wait()
	if n := accepted.Load(); n > 2*clients {
		t.Errorf("%d connections for %d clients; want them reused", n, clients)
	}
}
