// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// TestAuthorizationBackends checks HTTP/2 and TLS to the authorization backend.
func TestAuthorizationBackends(t *testing.T) {
	authority, others := newCA(t), newCA(t)
	answers := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Auth-Request-User", r.Proto)
		switch r.Header.Get("X-Wants") {
		case "headers":
			w.Header().Set("X-Long", strings.Repeat("a", 100<<10))
		case "nothing":
			w.WriteHeader(http.StatusForbidden)
		case "informational":
			for range 5000 {
				w.WriteHeader(http.StatusEarlyHints)
			}
		case "reset":
			panic(http.ErrAbortHandler)
		}
	}
	clear := httptest.NewUnstartedServer(http.HandlerFunc(answers))
	clear.Config.Protocols = new(http.Protocols)
	clear.Config.Protocols.SetUnencryptedHTTP2(true)
	clear.Start()
	t.Cleanup(clear.Close)
	secure := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{authority.pair("auth.example.com")}}, answers)
	good := &resource.BackendTLS{Hostname: "auth.example.com", CertificateAuthorities: []string{"authority"}}
	bad := &resource.BackendTLS{Hostname: "auth.example.com", CertificateAuthorities: []string{"others"}}
	port := freePort(t)
	var rules []*resource.Rule
	for _, name := range []string{"h2c", "tls", "tls2", "untrusted"} {
		rules = append(rules, toward("/"+name, "a", withAuthorization("/", func(of *resource.ExternalAuthorization) { of.Backend, of.Timeout = name, 5000 })))
	}
	start(t, nil, all(one(httpListener("l", port, nil), authority.authority("authority"), others.authority("others"), routes("r", "l", nil, rules...)),
		backend("a", serve(t, echo("a"))), encrypted("h2c", clear.Listener.Addr().String(), resource.Backend_H2C, nil),
		encrypted("tls", secure, 0, good), encrypted("tls2", secure, resource.Backend_H2C, good), encrypted("untrusted", secure, 0, bad))...)
	for name, proto := range map[string]string{"h2c": "HTTP/2.0", "tls": "HTTP/1.1", "tls2": "HTTP/2.0", "untrusted": ""} {
		for wants, status := range map[string]int{"": 200, "headers": 500, "nothing": 403, "informational": 500, "reset": 500} {
			if proto == "" {
				status = 500
			}
			for protocol, c := range both(t, port) {
				got := get(t, c, "http://a.example.com/"+name, "X-Wants: "+wants)
				if got.StatusCode != status || (got.Header.Get("X-Backend") != "") != (status == 200) {
					t.Errorf("%s over %s, %q: %d; want %d", name, protocol, wants, got.StatusCode, status)
				}
				if status == 200 && !strings.Contains(got.body, "X-Auth-Request-User: "+proto+"\r\n") {
					t.Errorf("%s over %s: the backend received\n%s", name, protocol, got.body)
				}
			}
		}
	}
}

// TestAuthorizationOfCalls checks gRPC requests, whose body is not sent to the authorization backend.
func TestAuthorizationOfCalls(t *testing.T) {
	auth := new(authorizer)
	service, own := serve(t, auth.ServeHTTP), serve(t, echo("a"))
	port := freePort(t)
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a", withAuthorization("/forbidden")))),
		backend("a", own), backend("auth", service))...)
	got := send(t, client(t, port, nil, (*http.Protocols).SetUnencryptedHTTP2), "POST", "http://a.example.com/service/Method", "message",
		"Content-Type: application/grpc", "Te: trailers")
	question := auth.question()
	if got.StatusCode != 403 || question == nil || question.ContentLength != 0 || question.Header.Get("Content-Type") != "" {
		t.Errorf("status %d, authorization request %+v", got.StatusCode, question)
	}
}

// TestAuthorizationOfConnections checks that tunnels are closed, because they cannot be authorized.
func TestAuthorizationOfConnections(t *testing.T) {
	authority := newCA(t)
	bytes := serveBytes(t, "b", &tls.Config{Certificates: []tls.Certificate{authority.pair("b")}})
	service := serve(t, new(authorizer).ServeHTTP)
	port := freePort(t)
	f := start(t, nil, all(one(authority.resource("c", "ended.example.com"),
		bytesListener("passed", port, resource.Listener_TLS_PASSTHROUGH, "passed.example.com"),
		bytesListener("ended", port, resource.Listener_TLS_TERMINATE, "ended.example.com", "c"),
		routes("of passed", "passed", nil, toward("/", "b", withAuthorization("/"))),
		routes("of ended", "ended", nil, toward("/", "b", withAuthorization("/")))), bytesBackend("b", bytes), backend("auth", service))...)
	for _, listener := range []string{"passed", "ended"} {
		got, err := exchangeBytes(t, port, &tls.Config{ServerName: listener + ".example.com", InsecureSkipVerify: true}, "hello")
		if err == nil && got != "" {
			t.Errorf("%s: %q", listener, got)
		}
		awaitMetric(t, f, fmt.Sprintf(`millrace_proxy_tunnels_total{listener="%s",result="authorization_denied"} 1`, listener))
	}
}
