// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/proxy/plan"
	"github.com/millrace-lb/millrace/gateway/resource"
)

func TestRouting(t *testing.T) {
	port := freePort(t)
	a, b := serve(t, echo("a")), serve(t, echo("b"))
	invalid := toward("/invalid", "")
	refused := &resource.Resource{Name: "refused", Kind: &resource.Resource_Backend{Backend: &resource.Backend{Refuse: true}}}
	start(t, nil, all(
		one(
			httpListener("exact", port, &resource.Hostname{Name: "a.example.com"}),
			httpListener("wild", port, &resource.Hostname{Name: "example.com", Wildcard: resource.Hostname_LABELS}),
			routes("r1", "exact", nil,
				toward("/b", "b"), invalid, toward("/refused", "refused"), toward("/empty", "empty"),
				toward("/dead", "dead"), toward("/", "a")),
			routes("r2", "wild", &resource.Hostname{Name: "b.example.com"}, toward("/only", "b")),
			refused,
		),
		backend("a", a), backend("b", b), backend("empty"), backend("dead", fmt.Sprintf("127.0.0.1:%d", freePort(t))),
	)...)
	c := client(t, port, nil)
	for _, tc := range []struct {
		url     string
		status  int
		backend string
	}{
		{"http://a.example.com/", 200, "a"},
		{"http://A.Example.COM.:8080/", 200, "a"},
		{"http://a.example.com/b/c", 200, "b"},
		{"http://a.example.com/bc", 200, "a"},
		{"http://a.example.com/x/../b", 200, "b"},
		{"http://a.example.com/x/%2e%2e/b", 200, "b"},
		{"http://a.example.com/x%2F..%2Fb", 200, "b"},
		{"http://a.example.com/invalid", 500, ""},
		{"http://a.example.com/refused", 500, ""},
		{"http://a.example.com/empty", 503, ""},
		{"http://a.example.com/dead", 502, ""},
		{"http://b.example.com/only", 200, "b"},
		{"http://b.example.com/", 404, ""},
		{"http://c.example.com/only", 404, ""},
		{"http://example.com/", 404, ""},
		{"http://other.example.net/", 404, ""},
	} {
		got := get(t, c, tc.url)
		if got.StatusCode != tc.status || got.Header.Get("X-Backend") != tc.backend {
			t.Errorf("%s: %d from %q; want %d from %q", tc.url, got.StatusCode, got.Header.Get("X-Backend"), tc.status, tc.backend)
		}
	}
}

func TestForwarded(t *testing.T) {
	port, trusting := freePort(t), freePort(t)
	trusted := httpListener("trusting", trusting, nil)
	trusted.GetListener().TrustedHops = 2
	start(t, nil, all(
		one(httpListener("l", port, nil), trusted, routes("r", "l", nil, toward("/", "a")), routes("r2", "trusting", nil, toward("/", "a"))),
		backend("a", serve(t, echo("a"))),
	)...)
	headers := []string{
		"X-Forwarded-For: 203.0.113.1, 203.0.113.2", "X-Forwarded-For: 203.0.113.3",
		"X-Forwarded-Proto: HTTPS, http", "X-Forwarded-Host: given.example.com, front.example.com", "Forwarded: for=203.0.113.9",
		"X-Forwarded-Scheme: ftp", "X-Scheme: ftp", "X-Forwarded-Port: 8443", "X-Real-IP: 203.0.113.9", "X-Request-ID: of-the-front",
	}
	got := get(t, client(t, port, nil), "http://a.example.com/p%2Fq?a=1;b&c", headers...)
	for _, want := range []string{
		"GET /p%2Fq?a=1;b&c a.example.com\n", "X-Forwarded-For: 127.0.0.1\r\n", "X-Forwarded-Proto: http\r\n", "X-Forwarded-Host: a.example.com\r\n",
		"X-Forwarded-Port: 80\r\n", "X-Forwarded-Scheme: http\r\n", "X-Scheme: http\r\n", "X-Real-Ip: 127.0.0.1\r\n", "X-Request-Id: ",
	} {
		if !strings.Contains(got.body, want) {
			t.Errorf("the backend received\n%s\nwant %q", got.body, want)
		}
	}
	if strings.Contains(got.body, "203.0.113") || strings.Contains(got.body, "of-the-front") || strings.Contains(got.body, "ftp") {
		t.Errorf("the backend received spoofed values of the client:\n%s", got.body)
	}
	if id := requestID(got); !regexp.MustCompile("^[0-9a-f]{32}$").MatchString(id) || id == requestID(get(t, client(t, port, nil), "http://a.example.com/")) {
		t.Errorf("request ID = %q; want 16 random bytes", id)
	}
	got = get(t, client(t, trusting, nil), "http://a.example.com/", headers...)
	for _, want := range []string{
		"X-Forwarded-For: 203.0.113.2, 203.0.113.3, 127.0.0.1\r\n", "X-Forwarded-Proto: https\r\n", "X-Forwarded-Host: given.example.com\r\n",
		"X-Forwarded-Port: 8443\r\n", "X-Forwarded-Scheme: https\r\n", "X-Scheme: https\r\n", "X-Real-Ip: 203.0.113.2\r\n", "X-Request-Id: of-the-front\r\n",
	} {
		if !strings.Contains(got.body, want) {
			t.Errorf("with two trusted hops the backend received\n%s\nwant %q", got.body, want)
		}
	}
}

func requestID(of reply) string {
	_, after, _ := strings.Cut(of.body, "X-Request-Id: ")
	id, _, _ := strings.Cut(after, "\r\n")
	return id
}

// TestRedirectInsecureOnly checks that requests over TLS at a trusted proxy are not redirected.
func TestRedirectInsecureOnly(t *testing.T) {
	port, trusting := freePort(t), freePort(t)
	trusted := httpListener("trusting", trusting, nil)
	trusted.GetListener().TrustedHops = 1
	rule := toward("/", "a", &resource.Filter{Kind: &resource.Filter_Redirect{Redirect: &resource.Redirect{
		Scheme: "https", Status: 308, InsecureOnly: true,
	}}})
	resources := all(one(httpListener("l", port, nil), trusted, routes("r", "l", nil, rule), routes("r2", "trusting", nil, rule)),
		backend("a", serve(t, echo("a"))))
	start(t, nil, resources...)
	made, err := plan.New(resources)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		port    uint32
		headers []string
		want    int
	}{
		{port, nil, 308},
		{port, []string{"X-Forwarded-Proto: https"}, 308},
		{trusting, nil, 308},
		{trusting, []string{"X-Forwarded-Proto: http"}, 308},
		{trusting, []string{"X-Forwarded-Proto: other"}, 308},
		{trusting, []string{"X-Forwarded-Proto: https"}, 200},
		{trusting, []string{"X-Forwarded-Proto: https,http"}, 200},
		{trusting, []string{"X-Forwarded-Proto: HTTPS"}, 200},
		{trusting, []string{"X-Forwarded-Proto: http, https"}, 308},
	} {
		if got := get(t, client(t, test.port, nil), "http://a.example/x", test.headers...); got.StatusCode != test.want {
			t.Errorf("port %d, %q: %d; want %d", test.port, test.headers, got.StatusCode, test.want)
		}
		request := plan.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: "a.example", Path: "/x"}, Header: http.Header{}}
		for _, header := range test.headers {
			name, value, _ := strings.Cut(header, ": ")
			request.Header[name] = []string{value}
		}
		if got := made.Decide(uint16(test.port), request); got.Status != test.want%200 && got.Status != test.want {
			t.Errorf("port %d, %q: planned %d; want %d", test.port, test.headers, got.Status, test.want)
		}
	}
}

// TestStreamsAndTrailers checks that parts of a body are forwarded immediately in both directions.
func TestStreamsAndTrailers(t *testing.T) {
	for name, protocol := range map[string]resource.Backend_Protocol{"h1": resource.Backend_HTTP1, "h2c": resource.Backend_H2C} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			server := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				controller := http.NewResponseController(w)
				_ = controller.EnableFullDuplex()
				w.Header().Set("Trailer", "Grpc-Status")
				w.WriteHeader(http.StatusOK)
				_ = controller.Flush()
				lines := bufio.NewReader(r.Body)
				for {
					line, err := lines.ReadString('\n')
					if err != nil {
						break
					}
					_, _ = io.WriteString(w, "got "+line)
					_ = controller.Flush()
				}
				w.Header().Set("Grpc-Status", r.Trailer.Get("Repr-Digest"))
			})}
			server.Protocols.SetHTTP1(true)
			server.Protocols.SetUnencryptedHTTP2(true)
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(func() { _ = server.Close() })
			resources := backend("a", listener.Addr().String())
			resources[0].GetBackend().Protocol = protocol
			start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), resources)...)

			reader, writer := io.Pipe()
			request, err := http.NewRequest(http.MethodPost, "http://a.example.com/", reader)
			if err != nil {
				t.Fatal(err)
			}
			request.Trailer = http.Header{"Repr-Digest": nil}
			response, err := client(t, port, nil, (*http.Protocols).SetUnencryptedHTTP2).Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			lines := bufio.NewReader(response.Body)
			for i := range 5 {
				fmt.Fprintf(writer, "line %d\n", i)
				if got, err := lines.ReadString('\n'); err != nil || got != fmt.Sprintf("got line %d\n", i) {
					t.Fatalf("line %d received as %q, %v", i, got, err)
				}
			}
			request.Trailer.Set("Repr-Digest", "7")
			_ = writer.Close()
			if _, err := io.Copy(io.Discard, response.Body); err != nil {
				t.Fatal(err)
			}
			if got := response.Trailer.Get("Grpc-Status"); got != "7" {
				t.Errorf("trailer %q; want that of the request", got)
			}
		})
	}
}

// TestBackendEndsStream checks that a response ends before the request, like gRPC streams with a status.
func TestBackendEndsStream(t *testing.T) {
	for name, protocol := range map[string]resource.Backend_Protocol{"h1": resource.Backend_HTTP1, "h2c": resource.Backend_H2C} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				controller := http.NewResponseController(w)
				_ = controller.EnableFullDuplex()
				w.Header().Set("Trailer", "Grpc-Status")
				_, _ = io.ReadFull(r.Body, make([]byte, 5))
				_, _ = io.WriteString(w, "heard")
				_ = controller.Flush()
				w.Header().Set("Grpc-Status", "14")
			}))
			server.Config.Protocols = new(http.Protocols)
			server.Config.Protocols.SetHTTP1(true)
			server.Config.Protocols.SetUnencryptedHTTP2(true)
			server.Start()
			t.Cleanup(server.Close)
			resources := backend("a", server.Listener.Addr().String())
			resources[0].GetBackend().Protocol = protocol
			start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), resources)...)

			reader, writer := io.Pipe()
			defer writer.Close()
			go func() { _, _ = io.WriteString(writer, "hello") }()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://a.example.com/", reader)
			if err != nil {
				t.Fatal(err)
			}
			response, err := client(t, port, nil, (*http.Protocols).SetUnencryptedHTTP2).Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil || string(body) != "heard" || response.Trailer.Get("Grpc-Status") != "14" {
				t.Errorf("%q, trailer %v, %v; want the end of the stream with its trailer", body, response.Trailer, err)
			}
		})
	}
}

func upgraded(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		echo("plain")(w, r)
		return
	}
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
	for {
		line, err := buffered.ReadString('\n')
		if err != nil {
			return
		}
		fmt.Fprint(conn, "got "+line)
	}
}

func TestUpgrade(t *testing.T) {
	port := freePort(t)
	rule := toward("/", "a")
	rule.Timeouts = &resource.Timeouts{Request: 100, BackendRequest: 100}
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, rule)), backend("a", serve(t, upgraded)))...)
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	buffered := bufio.NewReader(conn)
	response, err := http.ReadResponse(buffered, nil)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("status %d; want 101", response.StatusCode)
	}
	begun := time.Now()
	for i := 0; i < 3 || time.Since(begun) < 200*time.Millisecond; i++ {
		fmt.Fprintf(conn, "line %d\n", i)
		if got, err := buffered.ReadString('\n'); err != nil || got != fmt.Sprintf("got line %d\n", i) {
			t.Fatalf("line %d received as %q, %v", i, got, err)
		}
		f.change(routes("r", "l", nil, toward(fmt.Sprintf("/%d", i), "a")))
	}
}
