// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/admission"
	"github.com/millrace-lb/millrace/gateway/resource"
)

func withAuthorization(path string, change ...func(*resource.ExternalAuthorization)) *resource.Filter {
	of := &resource.ExternalAuthorization{
		Backend: "auth", Path: path, Host: "auth.example.com", RequestHeaders: []string{"*"},
		ResponseHeaders: []string{"X-Auth-Request-User", "X-Auth-Request-Email"}, SetCookies: true, Timeout: 10_000,
	}
	for _, each := range change {
		each(of)
	}
	return &resource.Filter{Kind: &resource.Filter_ExternalAuthorization{ExternalAuthorization: of}}
}

type authorizer struct {
	mutex    sync.Mutex
	last     *http.Request
	requests atomic.Int64
	gone     chan struct{}
}

func (a *authorizer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.requests.Add(1)
	a.mutex.Lock()
	a.last = r
	a.mutex.Unlock()
	raw := func(text string) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			fmt.Fprint(conn, text)
			_ = conn.Close()
		}
	}
	switch header := w.Header(); r.URL.Path {
	case "/cookie":
		if _, err := r.Cookie("session"); err != nil {
			header.Set("Www-Authenticate", "Bearer")
			header.Set("X-Secret", "not for clients")
			header.Add("Set-Cookie", "csrf=1")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, "who are you?")
			return
		}
		header.Set("X-Auth-Request-User", "ann")
		header.Add("Set-Cookie", "session=renewed")
		w.WriteHeader(http.StatusAccepted)
	case "/forbidden":
		header.Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, "<p>no</p>")
	case "/moved":
		http.Redirect(w, r, "https://login.example.com/", http.StatusFound)
	case "/broken":
		w.WriteHeader(http.StatusInternalServerError)
	case "/hang":
		<-r.Context().Done()
		a.gone <- struct{}{}
	case "/bodyhangs":
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case "/cut":
		raw("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")
	case "/cuthead":
		raw("HTTP/1.1 200 OK\r\nSet-Cookie: secret")
	case "/nonsense":
		raw("secret 220 smtp.example.com\r\n")
	case "/switches":
		raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	case "/informational":
		raw(strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: <https://example.com/>\r\n\r\n", 100_000) + "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	case "/megabyte", "/headers":
		lines := map[string]int{"/megabyte": 1000, "/headers": 100}[r.URL.Path]
		raw("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", lines) + "\r\n")
	case "/long":
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, strings.Repeat("a", 10<<20))
	default:
		header.Set("X-Auth-Request-User", "ann")
		header.Set("X-Other", "other")
		header.Set("Content-Type", "application/json")
		fmt.Fprint(w, "{}")
	}
}

func (a *authorizer) question() *http.Request {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return a.last
}

// TestExternalAuthorization checks that only allowed requests are forwarded, over each protocol.
func TestExternalAuthorization(t *testing.T) {
	port := freePort(t)
	auth := &authorizer{gone: make(chan struct{}, 100)}
	strict := func(of *resource.ExternalAuthorization) { of.OnlyOk = true }
	signing := func(of *resource.ExternalAuthorization) {
		of.SignIn = "https://$host/oauth2/start?rd=$scheme://$host$escaped_request_uri"
	}
	rules := []*resource.Rule{
		toward("/signin", "a", withAuthorization("/cookie", signing)), toward("/dead", "a", withAuthorization("/", func(of *resource.ExternalAuthorization) { of.Backend = "dead" })),
		toward("/none", "a", withAuthorization("/", func(of *resource.ExternalAuthorization) { of.Backend = "none" })),
		toward("/bytes", "a", withAuthorization("/", func(of *resource.ExternalAuthorization) { of.Backend = "bytes" })),
		toward("/strict/moved", "a", withAuthorization("/moved", strict)), toward("/strict/cookie", "a", withAuthorization("/cookie", strict)),
		toward("/strict/broken", "a", withAuthorization("/broken", strict)),
	}
	for _, path := range []string{
		"/ok", "/cookie", "/forbidden", "/moved", "/broken", "/hang", "/bodyhangs", "/cut", "/cuthead", "/nonsense", "/switches",
		"/informational", "/headers", "/megabyte", "/long",
	} {
		rules = append(rules, toward(path, "a", withAuthorization(path, func(of *resource.ExternalAuthorization) {
			if strings.Contains(path, "hang") {
				of.Timeout = 300
			}
		})))
	}
	dead := freePort(t)
	var log syncBuffer
	f := start(t, func(s *Settings) { s.AccessLog = slog.New(slog.NewJSONHandler(&log, nil)) }, all(
		one(httpListener("l", port, nil), routes("r", "l", nil, rules...)), backend("a", serve(t, echo("a"))),
		backend("auth", serve(t, auth.ServeHTTP)), backend("dead", client127(dead)), backend("none"),
		bytesBackend("bytes", serve(t, auth.ServeHTTP)))...)
	refused, failed := 0, 0
	for _, test := range []struct {
		path, cookie string
		status       int
		has          []string
		body         string
	}{
		{"/ok", "", 200, nil, ""},
		{"/cookie", "", 401, []string{"Www-Authenticate: Bearer", "Set-Cookie: csrf=1"}, "who are you?"},
		{"/cookie", "session=1", 200, []string{"Set-Cookie: session=renewed"}, ""},
		{"/signin/a?b=c&d", "", 302, []string{
			"Location: https://a.example.com/oauth2/start?rd=http://a.example.com%2Fsignin%2Fa%3Fb%3Dc%26d", "Set-Cookie: csrf=1"}, ""},
		{"/signin", "session=1", 200, []string{"Set-Cookie: session=renewed"}, ""},
		{"/forbidden", "", 403, []string{"Content-Type: text/html"}, "<p>no</p>"},
		{"/long", "", 403, nil, ""},
		{"/strict/moved", "", 302, []string{"Location: https://login.example.com/"}, ""},
		{"/strict/cookie", "session=1", 202, nil, ""},
		{"/strict/broken", "", 500, nil, ""},
		{"/moved", "", 500, nil, ""}, {"/broken", "", 500, nil, ""}, {"/hang", "", 500, nil, ""}, {"/bodyhangs", "", 500, nil, ""},
		{"/cut", "", 500, nil, ""}, {"/cuthead", "", 500, nil, ""}, {"/nonsense", "", 500, nil, ""}, {"/switches", "", 500, nil, ""},
		{"/informational", "", 500, nil, ""}, {"/headers", "", 500, nil, ""}, {"/megabyte", "", 500, nil, ""}, {"/dead", "", 500, nil, ""}, {"/none", "", 500, nil, ""},
		{"/bytes", "", 500, nil, ""},
	} {
		for protocol, c := range both(t, port) {
			headers := []string{"X-Auth-Request-User: root", "X-Auth-Request-Email: root@example.com", "X_Auth_Request_User: root"}
			if test.cookie != "" {
				headers = append(headers, "Cookie: "+test.cookie)
			}
			got := get(t, c, "http://a.example.com"+test.path, headers...)
			if got.StatusCode != test.status || got.Proto != protocol {
				t.Errorf("%s over %s: %d %s; want %d", test.path, protocol, got.StatusCode, got.Proto, test.status)
			}
			for _, header := range test.has {
				if name, value, _ := strings.Cut(header, ": "); got.Header.Get(name) != value {
					t.Errorf("%s over %s: %s: %q; want %q", test.path, protocol, name, got.Header.Get(name), value)
				}
			}
			if !strings.HasPrefix(got.body, test.body) || got.Header.Get("X-Secret") != "" || len(got.body) > maxAuthorizationBody {
				t.Errorf("%s over %s: %.80q, %v", test.path, protocol, got.body, got.Header)
			}
			passed := got.Header.Get("X-Backend") != ""
			if passed != (test.status == 200) {
				t.Errorf("%s over %s: reached the backend = %v", test.path, protocol, passed)
			}
			if passed && (!strings.Contains(got.body, "X-Auth-Request-User: ann\r\n") || strings.Contains(got.body, "root")) {
				t.Errorf("%s over %s: the backend received\n%s", test.path, protocol, got.body)
			}
			switch {
			case passed:
			case test.status == 500 && !strings.HasPrefix(test.path, "/strict"):
				failed++
			default:
				refused++
			}
		}
	}
	awaitMetric(t, f, fmt.Sprintf(`millrace_proxy_denied_total{reason="authorization_denied"} %d`, refused))
	awaitMetric(t, f, fmt.Sprintf(`millrace_proxy_denied_total{reason="authorization_error"} %d`, failed))
	text := log.take()
	if got := strings.Count(text, `"error":"the authorization backend: `); got != failed {
		t.Errorf("%d failures in the log; want %d:\n%s", got, failed, text)
	}
	if got := strings.Count(text, `"error":"the authorization backend answered `); got != refused {
		t.Errorf("%d denials in the log; want %d:\n%s", got, refused, text)
	}
	if strings.Contains(text, "secret") || strings.Contains(text, "session=") {
		t.Errorf("the log contains credentials:\n%s", text)
	}
}

// TestAuthorizationRequest checks the authorization request, which clients cannot influence.
func TestAuthorizationRequest(t *testing.T) {
	auth := &authorizer{}
	// Before freePort, so that they do not take the free port.
	service, own := serve(t, auth.ServeHTTP), serve(t, echo("a"))
	port, trusting := freePort(t), freePort(t)
	trusted := httpListener("trusting", trusting, nil)
	trusted.GetListener().TrustedHops = 1
	rules := []*resource.Rule{
		toward("/all", "a", withAuthorization("/oauth2/auth?groups=a,b")),
		toward("/some", "a", withAuthorization("/auth", func(of *resource.ExternalAuthorization) {
			of.RequestHeaders, of.Method, of.Redirect = []string{"X-Key"}, "POST", "https://$host$request_uri"
		})),
		toward("/as", "a", withAuthorization("/check", func(of *resource.ExternalAuthorization) {
			of.AsRequested, of.OnlyOk, of.RequestHeaders, of.ResponseHeaders = true, true, nil, []string{"*"}
		})),
	}
	start(t, nil, all(one(httpListener("l", port, nil), trusted, routes("r", "l", nil, rules...), routes("r2", "trusting", nil, rules...)),
		backend("a", own), backend("auth", service))...)
	forged := []string{
		"X-Original-Url: http://a.example.com/public", "X-Original-Uri: /public", "X-Original-Method: HEAD", "X-Forwarded-Uri: /public",
		"X-Forwarded-Method: HEAD", "X-Auth-Request-Redirect: //evil.example.com", "X-Real-Ip: 198.51.100.1", "X-Forwarded-Host: front.example.com",
		"X-Forwarded-For: 198.51.100.1", "X-Forwarded-Proto: https", "X-Forwarded-Prefix: /x",
	}
	sent := append([]string{
		"Authorization: Basic YTpi", "Cookie: session=1", "X-Key: 1", "X-Hop: 1", "Connection: X-Hop", "Content-Type: text/plain", "If-None-Match: 1",
		"Range: bytes=0-1", "Te: trailers", "Accept-Encoding: gzip", "Cdn-Loop: elsewhere",
	}, forged...)
	for _, test := range []struct {
		port                    uint32
		method, path            string
		request, target, host   string
		url, redirect, client   string
		proto, forwarded, other string
	}{
		{port, "PUT", "/all/./x%2fy?q=1", "GET", "/oauth2/auth?groups=a,b", "auth.example.com",
			"http://a.example.com/all/x/y?q=1", "/all/x/y?q=1", "127.0.0.1", "http", "a.example.com", "X-Key"},
		{port, "GET", "/some?q", "POST", "/auth", "auth.example.com",
			"http://a.example.com/some?q", "https://a.example.com/some?q", "127.0.0.1", "http", "a.example.com", ""},
		{port, "DELETE", "/as/x%2fy?q=1", "DELETE", "/check/as/x%2fy?q=1", "a.example.com",
			"http://a.example.com/as/x%2fy?q=1", "/as/x%2fy?q=1", "127.0.0.1", "http", "a.example.com", ""},
		{trusting, "GET", "/all", "GET", "/oauth2/auth?groups=a,b", "auth.example.com",
			"https://front.example.com/all", "/all", "198.51.100.1", "https", "front.example.com", ""},
	} {
		got := send(t, client(t, test.port, nil), test.method, "http://a.example.com"+test.path, "", sent...)
		if got.StatusCode != 200 {
			t.Fatalf("%s: %d", test.path, got.StatusCode)
		}
		q := auth.question()
		for what, pair := range map[string][2]string{
			"method": {q.Method, test.request}, "target": {q.RequestURI, test.target}, "host": {q.Host, test.host},
			"X-Original-URL": {q.Header.Get("X-Original-Url"), test.url}, "redirect": {q.Header.Get("X-Auth-Request-Redirect"), test.redirect},
			"X-Original-Method": {q.Header.Get("X-Original-Method"), test.method}, "X-Forwarded-Method": {q.Header.Get("X-Forwarded-Method"), test.method},
			"X-Real-IP": {q.Header.Get("X-Real-Ip"), test.client}, "X-Forwarded-Proto": {q.Header.Get("X-Forwarded-Proto"), test.proto},
			"X-Forwarded-Host": {q.Header.Get("X-Forwarded-Host"), test.forwarded}, "Authorization": {q.Header.Get("Authorization"), "Basic YTpi"},
			"If-None-Match": {q.Header.Get("If-None-Match"), ""}, "Range": {q.Header.Get("Range"), ""}, "X-Hop": {q.Header.Get("X-Hop"), ""},
			"Accept-Encoding": {q.Header.Get("Accept-Encoding"), ""}, "Content-Type": {q.Header.Get("Content-Type"), ""},
			"Cdn-Loop": {q.Header.Get("Cdn-Loop"), "elsewhere, millrace"}, "X-Forwarded-Prefix": {q.Header.Get("X-Forwarded-Prefix"), ""},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s %s at %d: %s is %q; want %q", test.method, test.path, test.port, what, pair[0], pair[1])
			}
		}
		if public := fmt.Sprint(q.Header); strings.Contains(public, "/public") || strings.Contains(public, "evil") {
			t.Errorf("%s: a client header replaced a header of the proxy: %v", test.path, q.Header)
		}
		// Cookies are forwarded only if configured.
		if all := strings.HasPrefix(test.path, "/all"); all != (q.Header.Get("Cookie") != "") {
			t.Errorf("%s: cookies = %q", test.path, q.Header["Cookie"])
		}
		if other := strings.Contains(got.body, "X-Other: other"); other != strings.HasPrefix(test.path, "/as") {
			t.Errorf("%s: an unlisted header reached the backend = %v", test.path, other)
		}
	}
}

// TestAuthorizationOrder checks that rejected addresses, preflights and redirects need no authorization.
func TestAuthorizationOrder(t *testing.T) {
	port := freePort(t)
	auth := &authorizer{}
	cors := &resource.Filter{Kind: &resource.Filter_Cors{Cors: &resource.CORS{AllowOrigins: []string{"https://b.example.com"}}}}
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil,
		toward("/others", "a", withAuthorization("/forbidden"), addresses([]string{"198.51.100.0/24"}, nil)),
		toward("/cors", "a", withAuthorization("/forbidden"), cors), toward("/moved", "a", withAuthorization("/forbidden"), redirectTo(&resource.Redirect{Scheme: "https"})),
		toward("/long", "a", withAuthorization("/forbidden"), &resource.Filter{Kind: &resource.Filter_BodyLimit{BodyLimit: &resource.BodyLimit{Bytes: 1}}}),
		toward("/", "a", withAuthorization("/forbidden")))), backend("a", switching(t)), backend("auth", serve(t, auth.ServeHTTP)))...)
	c := client(t, port, nil)
	preflight := []string{"Origin: https://b.example.com", "Access-Control-Request-Method: GET"}
	for _, test := range []struct {
		method, path, body string
		headers            []string
		status             int
		requests           int64
	}{
		{"GET", "/others", "", nil, 403, 0},
		{"OPTIONS", "/cors", "", preflight, 200, 0},
		{"OPTIONS", "/cors", "", nil, 403, 1},
		{"OPTIONS", "/", "", preflight, 403, 1},
		{"GET", "/moved", "", nil, 302, 0},
		{"POST", "/long", "long", nil, 403, 1},
		{"GET", "/", "", nil, 403, 1},
	} {
		before := auth.requests.Load()
		got := send(t, c, test.method, "http://a.example.com"+test.path, test.body, test.headers...)
		if requests := auth.requests.Load() - before; got.StatusCode != test.status || requests != test.requests {
			t.Errorf("%s %s: status %d, %d authorization requests; want %d and %d", test.method, test.path, got.StatusCode, requests, test.status, test.requests)
		}
	}
	got := send(t, c, "GET", "http://a.example.com/cors", "", "Origin: https://b.example.com")
	if got.Header.Get("Access-Control-Allow-Origin") != "https://b.example.com" {
		t.Errorf("a script cannot read the reason of the denial: %v", got.Header)
	}
	if status, _, _ := upgrade(t, "127.0.0.1", port); status != 403 || auth.question().Header.Get("Upgrade") != "" {
		t.Errorf("upgrade: status %d, authorization request headers %v", status, auth.question().Header)
	}
}

// TestAuthorizationClientLeaves checks that a disconnect cancels the authorization request.
func TestAuthorizationClientLeaves(t *testing.T) {
	port := freePort(t)
	auth := &authorizer{gone: make(chan struct{}, 1)}
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil,
		toward("/", "a", withAuthorization("/hang", func(of *resource.ExternalAuthorization) { of.Timeout = 60_000 })))),
		backend("a", serve(t, echo("a"))), backend("auth", serve(t, auth.ServeHTTP)))...)
	conn, err := net.Dial("tcp", client127(port))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
	for deadline := time.Now().Add(10 * time.Second); auth.requests.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("timeout while waiting for a request")
		}
	}
	_ = conn.Close()
	select {
	case <-auth.gone:
	case <-time.After(20 * time.Second):
		t.Fatal("the authorization request continues after its client disconnected")
	}
	awaitMetric(t, f, `millrace_proxy_requests_total{code="499",listener="l"} 1`)
}

func TestAuthorizationTimeLimit(t *testing.T) {
	port := freePort(t)
	auth := &authorizer{gone: make(chan struct{}, 1)}
	rule := toward("/", "a", withAuthorization("/hang", func(of *resource.ExternalAuthorization) { of.Timeout = 60_000 }))
	rule.Timeouts = &resource.Timeouts{Request: 100}
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, rule)),
		backend("a", serve(t, echo("a"))), backend("auth", serve(t, auth.ServeHTTP)))...)
	if got := get(t, client(t, port, nil), "http://a.example.com/"); got.StatusCode != 500 {
		t.Errorf("status %d; want 500", got.StatusCode)
	}
}

// TestAuthorizationMemoryLimit checks that hanging authorization requests use the client's memory only.
func TestAuthorizationMemoryLimit(t *testing.T) {
	port := freePort(t)
	auth := &authorizer{gone: make(chan struct{}, 1000)}
	const each, most = admission.ConnectionBytes + requestBytes + authorizationBytes, 40
	f := start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = most*each, most*each/4 }, all(
		one(httpListener("l", port, nil), routes("r", "l", nil,
			toward("/hang", "a", withAuthorization("/hang", func(of *resource.ExternalAuthorization) { of.Timeout = 60_000 })), toward("/", "a"))),
		backend("a", serve(t, echo("a"))), backend("auth", serve(t, auth.ServeHTTP)))...)
	var conns []net.Conn
	for range most {
		conn := dialFrom(t, "127.0.0.2", port)
		fmt.Fprint(conn, "GET /hang HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
		conns = append(conns, conn)
	}
	refused := make(chan int, most)
	for _, conn := range conns {
		go func() {
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			if response, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
				refused <- response.StatusCode
			} else {
				refused <- 0
			}
		}()
	}
	for range most / 2 {
		if status := <-refused; status != 503 && status != 0 {
			t.Errorf("status %d; want 503 above the limit of a client", status)
		}
	}
	if requests := auth.requests.Load(); requests > most/4 || requests == 0 {
		t.Errorf("%d concurrent authorization requests of one client; want 1 to %d", requests, most/4)
	}
	if got := get(t, client(t, port, nil), "http://a.example.com/"); got.StatusCode != 200 {
		t.Errorf("request of another client: status %d", got.StatusCode)
	}
	for _, conn := range conns {
		_ = conn.Close()
	}
	awaitMetric(t, f, "millrace_proxy_active_requests 0")
	again := dialFrom(t, "127.0.0.2", port)
	fmt.Fprint(again, "GET / HTTP/1.1\r\nHost: a.example.com\r\n\r\n")
	if response, err := http.ReadResponse(bufio.NewReader(again), nil); err != nil || response.StatusCode != 200 {
		t.Errorf("next request of the client: %v, %v", response, err)
	}
}

func TestAuthorizationReleasesMemory(t *testing.T) {
	port := freePort(t)
	const share = 16 * (admission.ConnectionBytes + requestBytes + tunnelBytes)
	start(t, func(s *Settings) { s.MaxBytes, s.MaxClientBytes = 4*share, share },
		all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a", withAuthorization("/")))), backend("a", switching(t)),
			backend("auth", serve(t, new(authorizer).ServeHTTP)))...)
	open := 0
	for ; open < 20; open++ {
		if status, _, _ := upgrade(t, "127.0.0.2", port); status != http.StatusSwitchingProtocols {
			break
		}
	}
	if open < 14 {
		t.Errorf("%d concurrent upgrades; want at least 14", open)
	}
}

func TestConcurrentAuthorizations(t *testing.T) {
	port := freePort(t)
	auth := serve(t, func(w http.ResponseWriter, r *http.Request) {
		user := r.Header.Get("X-User")
		w.Header().Set("X-Auth-Request-User", user)
		if strings.HasSuffix(user, "3") {
			w.WriteHeader(http.StatusForbidden)
		}
	})
	var log syncBuffer
	filter := withAuthorization("/", func(of *resource.ExternalAuthorization) { of.Timeout = 20_000 })
	start(t, func(s *Settings) { s.AccessLog = slog.New(slog.NewJSONHandler(&log, nil)) }, all(
		one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a", filter))),
		backend("a", serve(t, echo("a"))), backend("auth", auth))...)
	var workers sync.WaitGroup
	for protocol, c := range both(t, port) {
		for worker := range 8 {
			workers.Go(func() {
				for i := range 100 {
					user := fmt.Sprint(worker, "-", i)
					request, _ := http.NewRequest("GET", "http://a.example.com/", http.NoBody)
					request.Header.Set("X-User", user)
					response, err := c.Do(request)
					if err != nil {
						t.Error(err)
						return
					}
					got := new(strings.Builder)
					_ = response.Write(got)
					_ = response.Body.Close()
					want := 200
					if strings.HasSuffix(user, "3") {
						want = 403
					}
					if response.StatusCode != want || want == 200 && !strings.Contains(got.String(), "X-Auth-Request-User: "+user+"\r\n") {
						t.Errorf("%s of %s: %d\n%s", user, protocol, response.StatusCode, got)
					}
				}
			})
		}
	}
	workers.Wait()
	if text := log.take(); strings.Contains(text, "authorization backend: ") {
		t.Errorf("authorization requests failed:\n%s", text)
	}
}

// TestAuthorizationCannotBeBypassed checks that an invalid filter rejects all requests, instead of previous
// rules with another authorization.
func TestAuthorizationCannotBeBypassed(t *testing.T) {
	bad := func(change func(*resource.ExternalAuthorization)) *resource.Filter {
		return withAuthorization("/", change)
	}
	for name, after := range map[string][]*resource.Filter{
		"missing backend":        {bad(func(of *resource.ExternalAuthorization) { of.Backend = "missing" })},
		"empty backend":          {bad(func(of *resource.ExternalAuthorization) { of.Backend = "" })},
		"empty path":             {withAuthorization("")},
		"path with dot segments": {withAuthorization("/a/../b")},
		"unknown variable":       {bad(func(of *resource.ExternalAuthorization) { of.SignIn = "https://$hostname/" })},
		"framing header":         {bad(func(of *resource.ExternalAuthorization) { of.ResponseHeaders = []string{"Content-Length"} })},
		"timeout too long":       {bad(func(of *resource.ExternalAuthorization) { of.Timeout = 1 << 40 })},
		"two":                    {withAuthorization("/"), withAuthorization("/")},
		"unrelated error":        {withAuthorization("/"), unknown()},
		"method with spaces":     {bad(func(of *resource.ExternalAuthorization) { of.Method = "GET /x" })},
	} {
		for before, want := range map[*resource.Filter]int{nil: 500, withAuthorization("/other"): 500, addresses([]string{"127.0.0.0/8"}, nil): 500} {
			port := freePort(t)
			group := func(filters ...*resource.Filter) *resource.Resource {
				return routes("g", "l", nil, of("ingress/one/i", "/", "a", filters...))
			}
			first := group()
			if before != nil {
				first = group(before)
			}
			f := start(t, nil, all(one(httpListener("l", port, nil), first), backend("a", serve(t, echo("a"))),
				backend("auth", serve(t, new(authorizer).ServeHTTP)))...)
			f.change(group(after...))
			if got := get(t, client(t, port, nil), "http://a.example.com/"); got.StatusCode != want {
				t.Errorf("%s after %v: %d; want %d", name, before, got.StatusCode, want)
			}
			if statusOf(f.Proxy) == "" {
				t.Errorf("%s: no problem reported", name)
			}
		}
	}
	port := freePort(t)
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("g", "l", nil, of("ingress/one/i", "/", "a", withAuthorization("/forbidden")))),
		backend("a", serve(t, echo("a"))), backend("auth", serve(t, new(authorizer).ServeHTTP)))...)
	f.Apply(Update{Version: "gone", Removed: []string{"auth"}})
	if got := get(t, client(t, port, nil), "http://a.example.com/"); got.StatusCode != 500 {
		t.Errorf("without the authorization backend: %d; want 500", got.StatusCode)
	}
}
