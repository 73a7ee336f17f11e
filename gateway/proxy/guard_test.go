// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func addresses(allow, deny []string) *resource.Filter {
	return &resource.Filter{Kind: &resource.Filter_ClientAddresses{ClientAddresses: &resource.ClientAddresses{Allow: allow, Deny: deny}}}
}

func both(t *testing.T, port uint32) map[string]*http.Client {
	t.Helper()
	return map[string]*http.Client{
		"HTTP/1.1": client(t, port, nil), "HTTP/2.0": client(t, port, nil, (*http.Protocols).SetUnencryptedHTTP2),
	}
}

// awaitMetric waits for a line of the metrics, because requests are counted after their response.
func awaitMetric(t *testing.T, f *fixture, line string) {
	t.Helper()
	text := ""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if _, text = status(t, f.Admin(), "/metrics"); strings.Contains(text, "\n"+line+"\n") {
			return
		}
	}
	t.Errorf("metrics do not contain %q:\n%s", line, text)
}

func TestClientAddresses(t *testing.T) {
	port, trusting := freePort(t), freePort(t)
	trusted := httpListener("trusting", trusting, nil)
	trusted.GetListener().TrustedHops = 1
	sufficient := addresses([]string{"198.51.100.0/24"}, nil)
	sufficient.GetClientAddresses().Sufficient = true
	insecure := redirectTo(&resource.Redirect{Location: "https://a.example.com/"})
	rules := []*resource.Rule{
		toward("/allow/own", "a", addresses([]string{"127.0.0.0/8"}, nil)),
		toward("/allow", "a", addresses([]string{"198.51.100.0/24", "2001:db8::/32"}, nil)),
		toward("/deny/own", "a", addresses(nil, []string{"127.0.0.1"})),
		toward("/deny", "a", addresses(nil, []string{"198.51.100.0/24"})),
		toward("/each", "a", addresses([]string{"198.51.100.0/24"}, nil), addresses(nil, []string{"198.51.100.1"})),
		toward("/sufficient", "a", sufficient),
		toward("/moved", "a", insecure, addresses([]string{"198.51.100.0/24"}, nil)),
	}
	var log syncBuffer
	f := start(t, func(s *Settings) { s.AccessLog = slog.New(slog.NewJSONHandler(&log, nil)) }, all(
		one(httpListener("l", port, nil), trusted, routes("r", "l", nil, rules...), routes("r2", "trusting", nil, rules...)),
		backend("a", serve(t, echo("a"))))...)
	denied := 0
	for _, test := range []struct {
		port            uint32
		path, forwarded string
		status          int
	}{
		{port, "/allow/own", "", 200},
		{port, "/allow", "", 403},
		// Headers of untrusted clients are ignored.
		{port, "/allow", "198.51.100.1", 403},
		{port, "/deny/own", "", 403},
		{port, "/deny", "198.51.100.1", 200},
		{port, "/moved", "", 403},
		{trusting, "/allow", "198.51.100.1", 200},
		{trusting, "/allow", "198.51.100.1:4711", 200},
		{trusting, "/allow", "[2001:db8::1]:4711", 200},
		{trusting, "/allow", "198.51.100.1, 203.0.113.1", 403},
		{trusting, "/allow", "203.0.113.1, 198.51.100.1", 200},
		{trusting, "/allow", "", 403},
		{trusting, "/allow", "unknown", 403},
		{trusting, "/deny", "unknown", 403},
		{trusting, "/deny", "::ffff:198.51.100.1", 403},
		{trusting, "/deny", "203.0.113.1", 200},
		{trusting, "/each", "198.51.100.1", 403},
		{trusting, "/each", "198.51.100.2", 200},
		{trusting, "/moved", "198.51.100.1", 302},
		// Without a password or an authorization, a sufficient list is required.
		{trusting, "/sufficient", "198.51.100.1", 200},
		{trusting, "/sufficient", "203.0.113.1", 403},
		{trusting, "/x/../allow", "203.0.113.1", 403},
	} {
		for protocol, c := range both(t, test.port) {
			var headers []string
			if test.forwarded != "" {
				headers = append(headers, "X-Forwarded-For: "+test.forwarded)
			}
			got := get(t, c, "http://a.example.com"+test.path, headers...)
			if got.StatusCode != test.status || got.Proto != protocol {
				t.Errorf("%s from %q over %s: %d %s; want %d", test.path, test.forwarded, protocol, got.StatusCode, got.Proto, test.status)
			}
			if reached := got.Header.Get("X-Backend") != ""; reached != (test.status == 200) {
				t.Errorf("%s from %q over %s: reached the backend = %v", test.path, test.forwarded, protocol, reached)
			}
			if test.status == 403 {
				denied++
			}
		}
	}
	awaitMetric(t, f, fmt.Sprintf(`millrace_proxy_denied_total{reason="client_address"} %d`, denied))
	if text := log.take(); strings.Count(text, `"error":"the rule does not admit the client's address"`) != denied {
		t.Errorf("want %d denials in the log:\n%s", denied, text)
	}
}

func TestConnectionAddresses(t *testing.T) {
	port, trusting := freePort(t), freePort(t)
	authority := newCA(t)
	trusted := bytesListener("trusting", trusting, resource.Listener_TLS_PASSTHROUGH, "")
	trusted.GetListener().TrustedHops = 1
	own := []string{"127.0.0.0/8", "::1"}
	f := start(t, nil, all(one(authority.resource("c", "ended.example.com"),
		bytesListener("passed", port, resource.Listener_TLS_PASSTHROUGH, "passed.example.com"),
		bytesListener("ended", port, resource.Listener_TLS_TERMINATE, "ended.example.com", "c"),
		bytesListener("asked", port, resource.Listener_TLS_PASSTHROUGH, "asked.example.com"), usersFile("u"),
		routes("of asked", "asked", nil, toward("/", "b", password("u", "r"))),
		bytesListener("kept", port, resource.Listener_TLS_PASSTHROUGH, "kept.example.com"), trusted,
		routes("of passed", "passed", nil, toward("/", "b", addresses(own, nil))),
		routes("of ended", "ended", nil, toward("/", "b", addresses(nil, own))),
		routes("of kept", "kept", nil, toward("/", "b", addresses([]string{"198.51.100.0/24"}, nil))),
		routes("of trusting", "trusting", nil, toward("/", "b", addresses(nil, []string{"198.51.100.0/24"}))),
	), bytesBackend("b", serveBytes(t, "b", &tls.Config{Certificates: []tls.Certificate{authority.pair("b")}})))...)
	for _, test := range []struct {
		listener string
		port     uint32
		result   string
	}{{"passed", port, "passed"}, {"ended", port, "client_address"}, {"kept", port, "client_address"}, {"asked", port, "missing_credentials"}, {"trusting", trusting, "client_address"}} {
		got, err := exchangeBytes(t, test.port, &tls.Config{ServerName: test.listener + ".example.com", InsecureSkipVerify: true}, "hello")
		if passed := err == nil && got != ""; passed != (test.result == "passed") {
			t.Errorf("%s: %q, %v", test.listener, got, err)
		}
		awaitMetric(t, f, fmt.Sprintf(`millrace_proxy_tunnels_total{listener="%s",result="%s"} 1`, test.listener, test.result))
	}
}

// TestFaultyRulesAdmitNoRequest checks that a rule with an invalid filter returns 500 until it is fixed.
func TestFaultyRulesAdmitNoRequest(t *testing.T) {
	others, unreadable := addresses([]string{"198.51.100.0/24"}, nil), addresses([]string{"nowhere"}, nil)
	own := addresses([]string{"127.0.0.0/8"}, nil)
	for name, test := range map[string]struct {
		before, after []*resource.Filter
	}{
		"invalid list, no previous one": {nil, []*resource.Filter{unreadable}},
		"invalid list, previous one":    {[]*resource.Filter{own}, []*resource.Filter{unreadable}},
		"new list, unknown filter":      {nil, []*resource.Filter{others, unknown()}},
		"same list, unknown filter":     {[]*resource.Filter{own}, []*resource.Filter{own, unknown()}},
		"list removed, unknown filter":  {[]*resource.Filter{others}, []*resource.Filter{unknown()}},
	} {
		port := freePort(t)
		group := func(filters ...*resource.Filter) *resource.Resource {
			return routes("g", "l", nil, of("ingress/one/i", "/", "a", filters...))
		}
		f := start(t, nil, all(one(httpListener("l", port, nil), group(test.before...)), backend("a", serve(t, echo("a"))))...)
		f.change(group(test.after...))
		if got := get(t, client(t, port, nil), "http://a.example.com/"); got.StatusCode != 500 {
			t.Errorf("%s: %d; want 500", name, got.StatusCode)
		}
		if statusOf(f.Proxy) == "" {
			t.Errorf("%s: no problem reported", name)
		}
		f.change(group())
		if got := get(t, client(t, port, nil), "http://a.example.com/"); got.StatusCode != 200 || statusOf(f.Proxy) != "" {
			t.Errorf("%s: next request %d, rejected %q", name, got.StatusCode, statusOf(f.Proxy))
		}
	}
	port := freePort(t)
	f := start(t, nil, all(one(httpListener("l", port, nil), routes("g", "l", nil,
		of("ingress/one/i", "/secret", "a"), of("ingress/one/i", "/", "a"))), backend("a", serve(t, echo("a"))))...)
	f.change(routes("g", "l", nil, of("ingress/one/i", "/secret", "a", unreadable), of("ingress/one/i", "/", "a")))
	if got := get(t, client(t, port, nil), "http://a.example.com/secret"); got.StatusCode != 500 {
		t.Errorf("rule with an invalid address list: %d; want 500", got.StatusCode)
	}
}
