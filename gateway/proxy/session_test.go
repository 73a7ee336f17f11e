// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func shared(values ...byte) *resource.Resource {
	secret := &resource.SharedSecret{}
	for _, value := range values {
		secret.Values = append(secret.Values, bytes.Repeat([]byte{value}, 32))
	}
	return &resource.Resource{Name: "secret", Kind: &resource.Resource_SharedSecret{SharedSecret: secret}}
}

// TestSessionsAtThreeProxies checks that sessions keep their endpoint during rotation of the secret.
func TestSessionsAtThreeProxies(t *testing.T) {
	addresses := make([]string, 8)
	for i := range addresses {
		addresses[i] = serve(t, echo(fmt.Sprint(i)))
	}
	rule := toward("/", "a")
	rule.SessionPersistence = &resource.SessionPersistence{SessionName: "s"}
	var proxies []*fixture
	var clients []*http.Client
	for range 3 {
		port := freePort(t)
		proxies = append(proxies, start(t, nil, all(one(shared(1), httpListener("l", port, nil), routes("r", "l", nil, rule)),
			backend("a", addresses...))...))
		clients = append(clients, client(t, port, nil))
	}
	type sticking struct{ backend, cookie string }
	sessions := make([]sticking, 100)
	for i := range sessions {
		got := get(t, clients[i%3], "http://a/")
		sessions[i] = sticking{got.Header.Get("X-Backend"), got.Cookies()[0].Value}
	}
	at := 0
	moved := func(when string) {
		t.Helper()
		count := 0
		for i := range sessions {
			at++
			got := get(t, clients[at%3], "http://a/", "Cookie: s="+sessions[i].cookie)
			if got.Header.Get("X-Backend") != sessions[i].backend {
				count++
			}
			for _, cookie := range got.Cookies() {
				sessions[i].cookie = cookie.Value
			}
		}
		if count > 0 {
			t.Errorf("%s: %d of %d sessions changed their backend", when, count, len(sessions))
		}
	}
	moved("with one secret")
	for day := byte(1); day < 4; day++ {
		for _, values := range [][]byte{{day, day + 1}, {day + 1, day}} {
			for i, proxy := range proxies {
				proxy.change(shared(values...))
				moved(fmt.Sprintf("secrets %v at %d proxies", values, i+1))
			}
			moved(fmt.Sprintf("secrets %v", values))
		}
	}
}

// TestSessionBegan checks that resealing a token keeps its start.
func TestSessionBegan(t *testing.T) {
	rule := toward("/", "a")
	rule.SessionPersistence = &resource.SessionPersistence{Kind: resource.SessionPersistence_HEADER, SessionName: "S", AbsoluteTimeout: 3_600_000}
	f := start(t, nil, all(one(shared(1), httpListener("l", freePort(t), nil), routes("r", "l", nil, rule)),
		backend("a", "198.18.0.1:80", "198.18.0.2:80"))...)
	x := exchangeFor(f)
	began := time.Now().Truncate(time.Second)
	text := seal(x.table.secrets.ciphers[0], x.rule.backends[0].id, netip.MustParseAddrPort("198.18.0.2:80"), began)
	x.in.Header.Set("S", text)
	if got := x.rule.session.find(x, began.Add(59*time.Minute)); got.endpoint == nil || !got.began.Equal(began) || got.old ||
		got.endpoint.Address.String() != "198.18.0.2:80" {
		t.Errorf("after 59 minutes: %+v; want the endpoint and start of the token", got)
	}
	if got := x.rule.session.find(x, began.Add(time.Hour)); got.endpoint != nil {
		t.Errorf("after one hour: %+v; want no session", got)
	}
	for i := range text {
		other := []byte(text)
		other[i] = 'A' + (other[i]-'A'+1)%26
		x.in.Header.Set("S", string(other))
		// The last character has unused bits.
		if got := x.rule.session.find(x, began); got.endpoint != nil && i < len(text)-1 {
			t.Errorf("token with byte %d changed: %+v; want no session", i, got)
		}
	}

	f.change(shared(2, 1))
	x = exchangeFor(f)
	x.in.Header.Set("S", text)
	x.sticky = x.rule.session.find(x, began.Add(30*time.Minute))
	if !x.sticky.old {
		t.Fatalf("session %+v; want old = true", x.sticky)
	}
	x.weighted, x.endpoint, x.begun = x.sticky.backend, x.sticky.endpoint, began.Add(30*time.Minute)
	header := http.Header{}
	x.rule.session.setToken(x, header)
	x.in.Header.Set("S", header.Get("S"))
	if got := x.rule.session.find(x, began.Add(59*time.Minute)); got.endpoint != x.endpoint || got.old || !got.began.Equal(began) {
		t.Errorf("resealed token: %+v; want the same start", got)
	}
	f.change(shared(3, 2))
	x = exchangeFor(f)
	x.in.Header.Set("S", text)
	if got := x.rule.session.find(x, began); got.endpoint != nil {
		t.Errorf("after two rotations: %+v; want no session", got)
	}
}

func exchangeFor(f *fixture) *transaction {
	table := f.table.Load()
	return &transaction{
		proxy: f.Proxy, in: httptest.NewRequest(http.MethodGet, "http://a/", nil), table: table,
		rule: table.groups["r"].value.Rules[0],
	}
}

// BenchmarkSession finds the endpoint of a cookie among 5,000.
func BenchmarkSession(b *testing.B) {
	var addresses []string
	for i := range 5000 {
		addresses = append(addresses, fmt.Sprintf("198.18.%d.%d:8080", i/250, i%250+1))
	}
	rule := toward("/", "a")
	rule.SessionPersistence = &resource.SessionPersistence{SessionName: "s", AbsoluteTimeout: 3_600_000}
	p := New(Defaults())
	resources := slices.Concat(one(shared(1, 2)), backend("a", addresses...))
	p.Apply(Update{Version: "1", Whole: true, Resources: resources})
	made, err := newRule(rule)
	if err != nil {
		b.Fatal(err)
	}
	x := &transaction{proxy: p, in: httptest.NewRequest(http.MethodGet, "http://a/", nil), table: p.table.Load(), rule: made}
	now := time.Now()
	for name, key := range map[string]int{"the first secret": 0, "the second": 1} {
		text := seal(x.table.secrets.ciphers[key], made.backends[0].id, netip.MustParseAddrPort(addresses[4321]), now)
		x.in.Header.Set("Cookie", "s="+text)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if found := made.session.find(x, now); found.endpoint == nil {
					b.Fatal("the endpoint was not found")
				}
			}
		})
	}
}
