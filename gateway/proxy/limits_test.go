// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"testing"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func clientLimit(of *resource.ClientLimit) *resource.Filter {
	return &resource.Filter{Kind: &resource.Filter_ClientLimit{ClientLimit: of}}
}

func TestClientLimits(t *testing.T) {
	const hour = 3_600_000
	port, trusting := freePort(t), freePort(t)
	trusted := httpListener("trusting", trusting, nil)
	trusted.GetListener().TrustedHops = 1
	rules := func() []*resource.Rule {
		return []*resource.Rule{
			toward("/one", "a", clientLimit(&resource.ClientLimit{Zone: "z", Requests: 1, Period: hour, Burst: 3})),
			toward("/other", "a", clientLimit(&resource.ClientLimit{Zone: "z", Requests: 1, Period: hour, Burst: 3})),
			toward("/429", "a", clientLimit(&resource.ClientLimit{Requests: 1, Period: hour, Status: 429})),
			toward("/two", "a", clientLimit(&resource.ClientLimit{Zone: "a", Concurrent: 1}), clientLimit(&resource.ClientLimit{Zone: "b", Requests: 1, Period: hour, Burst: 2})),
			toward("/exempt", "a", clientLimit(&resource.ClientLimit{Zone: "e", Requests: 1, Period: hour, Exempt: []string{"198.51.100.7"}})),
			toward("/password", "a", password("u", "r"), clientLimit(&resource.ClientLimit{Zone: "p", Requests: 1, Period: hour, Burst: 2})),
			toward("/moved", "a", redirectTo(&resource.Redirect{Location: "/x"}), clientLimit(&resource.ClientLimit{Zone: "m", Requests: 1, Period: hour})),
		}
	}
	resources := func() []*resource.Resource {
		return one(httpListener("l", port, nil), trusted, routes("r", "l", nil, rules()...), routes("rt", "trusting", nil, rules()...), usersFile("u", "a:"+hashSHA))
	}
	f := start(t, nil, all(resources(), backend("a", serve(t, echo("a"))))...)
	at := func(c *http.Client, path, address string, want ...int) {
		t.Helper()
		for i, status := range want {
			if got := get(t, c, "http://a.example.com"+path, "X-Forwarded-For: "+address); got.StatusCode != status {
				t.Errorf("%s from %s, request %d: %d; want %d", path, address, i, got.StatusCode, status)
			}
		}
	}
	protocols := both(t, trusting)
	c, second := protocols["HTTP/1.1"], protocols["HTTP/2.0"]
	at(c, "/one", "198.51.100.1", 200, 200)
	at(second, "/other", "198.51.100.1", 200, 503, 503)
	at(c, "/one", "198.51.100.1", 503)
	at(c, "/one", "198.51.100.2", 200)
	at(c, "/one", "2001:db8::1", 200, 200)
	at(c, "/one", "2001:db8::2", 200, 503)
	at(c, "/429", "198.51.100.1", 200, 429)
	at(c, "/two", "198.51.100.1", 200, 200, 503, 503)
	at(c, "/exempt", "198.51.100.7", 200, 200, 200)
	at(c, "/exempt", "198.51.100.8", 200, 503)
	at(c, "/password", "198.51.100.1", 401, 401, 503)
	at(c, "/moved", "198.51.100.1", 302, 302, 302)
	own := client(t, port, nil)
	at(own, "/one", "198.51.100.1", 200, 200, 200, 503)
	f.apply(all(resources(), backend("a", serve(t, echo("a"))))...)
	at(c, "/one", "198.51.100.1", 503)
	awaitMetric(t, f, `millrace_proxy_denied_total{reason="rate_limit"} 11`)
}

// TestConcurrentRequests checks the limit over all connections, including upgrades until they end.
func TestConcurrentRequests(t *testing.T) {
	port := freePort(t)
	arrived, leave := make(chan struct{}), make(chan struct{})
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a", clientLimit(&resource.ClientLimit{Concurrent: 2})))),
		backend("a", serve(t, func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				arrived <- struct{}{}
				<-leave
			}
		})))...)
	statuses := make(chan int)
	for _, c := range both(t, port) {
		go func() {
			response, err := c.Get("http://a.example.com/wait")
			if err != nil {
				statuses <- 0
				return
			}
			_ = response.Body.Close()
			statuses <- response.StatusCode
		}()
		<-arrived
	}
	for protocol, c := range both(t, port) {
		if got := get(t, c, "http://a.example.com/"); got.StatusCode != 503 {
			t.Errorf("third concurrent request over %s: %d; want 503", protocol, got.StatusCode)
		}
	}
	close(leave)
	for range 2 {
		if got := <-statuses; got != 200 {
			t.Errorf("one of two concurrent requests: %d", got)
		}
	}
	awaitMetric(t, f, `millrace_proxy_active_requests 0`)
	for range 3 {
		if got := get(t, client(t, port, nil), "http://a.example.com/"); got.StatusCode != 200 {
			t.Errorf("next request: %d; want 200", got.StatusCode)
		}
	}
	awaitMetric(t, f, `millrace_proxy_denied_total{reason="concurrency_limit"} 2`)
}

// TestConnectionLimits checks that tunnels count if their client is known.
func TestConnectionLimits(t *testing.T) {
	port, trusting, authority := freePort(t), freePort(t), newCA(t)
	trusted := bytesListener("trusting", trusting, resource.Listener_TLS_PASSTHROUGH, "")
	trusted.GetListener().TrustedHops = 1
	limit := clientLimit(&resource.ClientLimit{Zone: "z", Requests: 1, Period: 3_600_000, Burst: 2, Concurrent: 1})
	f := start(t, nil, all(one(bytesListener("l", port, resource.Listener_TLS_PASSTHROUGH, ""), trusted,
		routes("r", "l", nil, toward("/", "b", limit)), routes("rt", "trusting", nil, toward("/", "b", limit))),
		bytesBackend("b", serveBytes(t, "b", &tls.Config{Certificates: []tls.Certificate{authority.pair("b")}})))...)
	for i, test := range []struct {
		port   uint32
		passes bool
	}{{port, true}, {port, true}, {port, false}, {trusting, true}, {trusting, true}, {trusting, true}} {
		got, err := exchangeBytes(t, test.port, &tls.Config{ServerName: "a.example.com", InsecureSkipVerify: true}, "hello")
		if passed := err == nil && got != ""; passed != test.passes {
			t.Errorf("connection %d: %q, %v", i, got, err)
		}
		if test.passes && test.port == port {
			awaitMetric(t, f, fmt.Sprintf(`millrace_proxy_tunnels_total{listener="l",result="passed"} %d`, i+1))
		}
	}
	awaitMetric(t, f, `millrace_proxy_tunnels_total{listener="l",result="rate_limit"} 1`)
}
