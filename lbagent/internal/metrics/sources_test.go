// SPDX-License-Identifier: Apache-2.0

package metrics

import (
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

func TestSourceOf(t *testing.T) {
	for remote, want := range map[string]string{
		"198.51.100.9:1":            "198.51.100.9/32",
		"[::ffff:198.51.100.9]:1":   "198.51.100.9/32",
		"[2001:db8:0:1:2:3:4:5]:80": "2001:db8:0:1::/64",
		"[fe80::1%1]:80":            "fe80::/64",
	} {
		address, err := net.ResolveTCPAddr("tcp", remote)
		if err != nil {
			t.Fatal(err)
		}
		if got := sourceOf(address).String(); got != want {
			t.Errorf("%s is of source %s, want %s", remote, got, want)
		}
	}
}
