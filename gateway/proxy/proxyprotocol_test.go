// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/millrace-lb/millrace/gateway/resource"
)

func header(t *testing.T, version byte, local bool) string {
	t.Helper()
	h := proxyproto.HeaderProxyFromAddrs(version, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4711}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 443})
	if local {
		h.Command = proxyproto.LOCAL
	}
	text, err := h.Format()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestProxyProtocolAccepted checks that a header within trusted hops counts as one of them.
func TestProxyProtocolAccepted(t *testing.T) {
	for name, test := range map[string]struct {
		hops   uint32
		header string
		// chain is X-Forwarded-For of the backend; empty if the connection is rejected.
		chain string
	}{
		"untrusted, version 1":        {0, header(t, 1, false), ""},
		"untrusted, version 2":        {0, header(t, 2, false), ""},
		"untrusted, no header":        {0, "", "127.0.0.1"},
		"trusted, version 1":          {1, header(t, 1, false), "192.0.2.1"},
		"trusted, version 2":          {1, header(t, 2, false), "192.0.2.1"},
		"trusted, two headers":        {1, header(t, 2, false) + header(t, 2, false), ""},
		"trusted, a health check":     {1, header(t, 2, true), "127.0.0.1"},
		"trusted, no header":          {1, "", "198.51.100.7, 127.0.0.1"},
		"trusted, unknown":            {1, "PROXY UNKNOWN\r\n", "127.0.0.1"},
		"trusted, truncated":          {1, "PROXY TCP4 192.0.2.1\r\n", ""},
		"trusted, without TCP":        {1, header(t, 2, false)[:13] + "\x31" + string([]byte{0, 216}) + strings.Repeat("a", 216), ""},
		"two proxies, the last PROXY": {2, header(t, 2, false), "198.51.100.7, 192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			plain, secure, authority := freePort(t), freePort(t), newCA(t)
			listeners := one(httpListener("l", plain, nil), tlsListener("ls", secure, nil, "c"))
			for _, each := range listeners {
				each.GetListener().TrustedHops = test.hops
			}
			start(t, nil, all(listeners, one(authority.resource("c", "a"), routes("r", "l", nil, toward("/", "a")), routes("rs", "ls", nil, toward("/", "a"))),
				backend("a", serve(t, echo("a"))))...)
			for _, port := range []uint32{plain, secure} {
				if got := forwardedFor(t, port, port == secure, test.header); got != test.chain {
					t.Errorf("TLS %v: X-Forwarded-For = %q, want %q", port == secure, got, test.chain)
				}
			}
		})
	}
}

// forwardedFor returns the backend's X-Forwarded-For, or "" if the request is rejected.
func forwardedFor(t *testing.T, port uint32, encrypted bool, header string) string {
	t.Helper()
	conn := dialFrom(t, "127.0.0.1", port)
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, header); err != nil {
		t.Fatal(err)
	}
	if encrypted {
		conn = tls.Client(conn, &tls.Config{ServerName: "a", InsecureSkipVerify: true})
	}
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 198.51.100.9, 198.51.100.7\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != http.StatusOK {
		return ""
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(body), "X-Forwarded-For: ")
	chain, _, _ := strings.Cut(rest, "\r\n")
	return chain
}

// TestProxyProtocolSent checks that only backends with proxy_protocol receive the client's address.
func TestProxyProtocolSent(t *testing.T) {
	for name, test := range map[string]struct {
		isRequested bool
		protocol    resource.Listener_Protocol
		again       bool
		header      string
		want        string
	}{
		"passthrough":                           {isRequested: true, protocol: resource.Listener_TLS_PASSTHROUGH, want: "127.0.0.1"},
		"terminated":                            {isRequested: true, protocol: resource.Listener_TLS_TERMINATE, want: "127.0.0.1"},
		"terminated, TLS again":                 {isRequested: true, protocol: resource.Listener_TLS_TERMINATE, again: true, want: "127.0.0.1"},
		"not requested, passthrough":            {protocol: resource.Listener_TLS_PASSTHROUGH},
		"not requested, terminated":             {protocol: resource.Listener_TLS_TERMINATE},
		"behind a load balancer":                {isRequested: true, protocol: resource.Listener_TLS_PASSTHROUGH, header: header(t, 2, false), want: "192.0.2.1"},
		"behind a load balancer, not requested": {protocol: resource.Listener_TLS_PASSTHROUGH, header: header(t, 2, false)},
	} {
		t.Run(name, func(t *testing.T) {
			port, authority, got := freePort(t), newCA(t), make(chan string, 1)
			address := serveOnce(t, func(conn net.Conn) {
				reader := bufio.NewReader(conn)
				read, err := proxyproto.Read(reader)
				if err != nil {
					got <- ""
				} else {
					got <- read.SourceAddr.(*net.TCPAddr).IP.String()
				}
				var below net.Conn = &earlyConn{Conn: conn, reader: reader}
				if test.again || test.protocol == resource.Listener_TLS_PASSTHROUGH {
					below = tls.Server(below, &tls.Config{Certificates: []tls.Certificate{authority.pair("a.example.com")}})
				}
				_, _ = io.CopyN(below, below, 5)
			})
			to := bytesBackend("a", address)
			to[0].GetBackend().ProxyProtocol = test.isRequested
			if test.again {
				to[0].GetBackend().Tls = &resource.BackendTLS{Hostname: "a.example.com", CertificateAuthorities: []string{"authority"}}
			}
			listener := bytesListener("l", port, test.protocol, "a.example.com", "c")
			if test.header != "" {
				listener.GetListener().TrustedHops = 1
			}
			start(t, nil, all(one(authority.resource("c", "a.example.com"), authority.authority("authority"), listener,
				routes("r", "l", nil, toward("", "a"))), to)...)
			conn := dialFrom(t, "127.0.0.1", port)
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			fmt.Fprint(conn, test.header)
			client := tls.Client(conn, &tls.Config{ServerName: "a.example.com", RootCAs: authority.pool()})
			fmt.Fprint(client, "hello")
			text := make([]byte, 5)
			if _, err := io.ReadFull(client, text); err != nil || !bytes.Equal(text, []byte("hello")) {
				t.Errorf("%q, %v; want hello", text, err)
			}
			if source := <-got; source != test.want {
				t.Errorf("client address at the backend = %q, want %q", source, test.want)
			}
		})
	}
}

// TestProxyProtocolGuards checks that address lists use the header's address if its sender is the only
// trusted hop.
func TestProxyProtocolGuards(t *testing.T) {
	for name, test := range map[string]struct {
		hops   uint32
		header string
		passes bool
	}{
		"trusted": {1, header(t, 2, false), true}, "trusted, a proxy before it": {2, header(t, 2, false), false},
		"trusted, no header": {1, "", false}, "untrusted": {0, header(t, 2, false), false}, "untrusted, no header": {0, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			port, authority := freePort(t), newCA(t)
			listener := bytesListener("l", port, resource.Listener_TLS_PASSTHROUGH, "a.example.com")
			listener.GetListener().TrustedHops = test.hops
			to := serveOnce(t, func(conn net.Conn) {
				_ = tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{authority.pair("a.example.com")}}).Handshake()
			})
			start(t, nil, all(one(listener, routes("r", "l", nil, toward("", "a", addresses([]string{"192.0.2.1"}, nil)))), bytesBackend("a", to))...)
			conn := dialFrom(t, "127.0.0.1", port)
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			fmt.Fprint(conn, test.header)
			err := tls.Client(conn, &tls.Config{ServerName: "a.example.com", RootCAs: authority.pool()}).Handshake()
			if (err == nil) != test.passes {
				t.Errorf("error %v; want a connection: %v", err, test.passes)
			}
		})
	}
}

func serveOnce(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		handle(conn)
	}()
	return listener.Addr().String()
}
