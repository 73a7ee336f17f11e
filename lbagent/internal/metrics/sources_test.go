// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// One source that holds all the connections it can get keeps nobody else out, and is served again when it has
// let go of them.
func TestOneSourceKeepsNobodyOut(t *testing.T) {
	listener, err := Listen("127.0.0.1:0", "flag")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- ServeHealth(ctx, listener, Health{Alive: func() error { return nil }}) }()
	defer func() {
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	}()
	ask := func(source string) error {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
		client := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}, Timeout: 3 * time.Second}
		response, err := client.Get("http://" + address + "/healthz")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		return err
	}
	var held []net.Conn
	for range 2 * maxConnections {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	for range maxConnections {
		if err := ask("127.0.0.2"); err != nil {
			t.Fatalf("beside a source that holds connections: %v", err)
		}
	}
	if err := ask("127.0.0.1"); err == nil {
		t.Error("a source has more connections than it may have")
	}
	for _, conn := range held {
		_ = conn.Close()
	}
	deadline := time.Now().Add(10 * time.Second)
	for err := ask("127.0.0.1"); err != nil; err = ask("127.0.0.1") {
		if time.Now().After(deadline) {
			t.Fatalf("a source that has let go of its connections: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
}

// Many sources that hold all the connections there are keep nobody out, and nobody's connection that is
// the only one of its source is closed for them.
func TestManySourcesKeepNobodyOut(t *testing.T) {
	listener, err := Listen("127.0.0.1:0", "flag")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- ServeHealth(ctx, listener, Health{Alive: func() error { return nil }}) }()
	defer func() {
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	}()
	dial := func(source byte) net.Conn {
		t.Helper()
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, source)}}
		conn, err := dialer.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	// It is the oldest.
	scraper := dial(2)
	ask := func(conn net.Conn) error {
		_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
		_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		return err
	}
	if err := ask(scraper); err != nil {
		t.Fatal(err)
	}
	for i := range 4 * maxConnections {
		dial(byte(10 + i%(2*maxConnections/maxOfSource)))
	}
	if err := ask(dial(3)); err != nil {
		t.Errorf("beside sources that hold all connections: %v", err)
	}
	if err := ask(scraper); err != nil {
		t.Errorf("the only connection of a source: %v", err)
	}
}
