// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func newServer(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(newSite(identity{Pod: "p1", Node: "n1"}))
	t.Cleanup(server.Close)
	return server
}

func runJSON[T any](t *testing.T, run command, args ...string) (T, error) {
	t.Helper()
	var stdout bytes.Buffer
	runErr := run(t.Context(), args, &stdout)
	var value T
	if err := json.Unmarshal(stdout.Bytes(), &value); err != nil {
		t.Fatalf("%v: output %q: %v (%v)", args, stdout.String(), err, runErr)
	}
	return value, runErr
}

func TestLoad(t *testing.T) {
	server := newServer(t)
	for _, keepAlive := range []bool{true, false} {
		got, err := runJSON[report](t, load, "--url", server.URL, "--requests", "200", fmt.Sprintf("--keepalive=%t", keepAlive))
		if err != nil {
			t.Fatal(err)
		}
		if got.Requests != 200 || got.Errors != 0 || got.PerPod["p1"] != 200 || got.PerNode["n1"] != 200 || got.Clients["127.0.0.1"] != 200 {
			t.Errorf("report %+v", got)
		}
		if got.P50 <= 0 || got.P99 < got.P50 || got.Max < got.P99 {
			t.Errorf("times are not in order: %+v", got)
		}
	}
}

func TestLoadCountsErrors(t *testing.T) {
	var count atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch count.Add(1) % 4 {
		case 0:
			http.Error(w, "no", http.StatusServiceUnavailable)
		case 1:
			fmt.Fprint(w, "this is no JSON")
		default:
			writeAnswer(w, r, identity{Pod: "p", Node: "n"})
		}
	}))
	defer server.Close()
	got, err := runJSON[report](t, load, "--url", server.URL, "--requests", "100")
	if !errors.Is(err, errFailed) {
		t.Errorf("got %v, want errFailed", err)
	}
	if got.Requests != 100 || got.Errors != 50 || len(got.FirstErrors) != maxFirstErrors || got.PerPod["p"] != 50 {
		t.Errorf("report %+v", got)
	}
}

func TestLoadAtRate(t *testing.T) {
	server := newServer(t)
	got, err := runJSON[report](t, load, "--url", server.URL, "--rate", "100", "--duration", "500ms")
	if err != nil {
		t.Fatal(err)
	}
	// The last of 50 requests is due after 490 ms.
	if got.Requests != 50 || got.Seconds < 0.49 {
		t.Errorf("report %+v", got)
	}
}

// Each request is on a connection of its own, from a port of the range.
func TestLoadFromPorts(t *testing.T) {
	var others atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if from := netip.MustParseAddrPort(r.RemoteAddr).Port(); from < 40_000 || from > 40_063 {
			others.Add(1)
		}
		writeAnswer(w, r, identity{Pod: "p", Node: "n"})
	}))
	defer server.Close()
	got, err := runJSON[report](t, load, "--url", server.URL, "--ports", "40000-40063", "--requests", "20", "--keepalive=false")
	if err != nil || got.Requests != 20 || got.Errors != 0 || others.Load() != 0 {
		t.Errorf("report %+v, %d from other ports: %v", got, others.Load(), err)
	}
}

func TestLoadEndsWithContext(t *testing.T) {
	server := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout bytes.Buffer
	err := load(ctx, []string{"--url", server.URL, "--rate", "1", "--duration", "1h"}, &stdout)
	if !errors.Is(err, errFailed) {
		t.Errorf("got %v, want errFailed as nothing was requested", err)
	}
}

func TestLoadRefuses(t *testing.T) {
	for _, args := range [][]string{
		{"--requests", "0"}, {"--concurrency", "0"}, {"--rate", "-1"}, {"--duration", "1s"}, {"surplus"},
	} {
		if err := load(t.Context(), args, &bytes.Buffer{}); err == nil || errors.Is(err, errFailed) {
			t.Errorf("%v: got %v, want a refusal", args, err)
		}
	}
}

func TestTransfers(t *testing.T) {
	server := newServer(t)
	const size = 3<<20 + 7
	down, err := runJSON[transferReport](t, fetch, "--url", fmt.Sprintf("%s/bytes?n=%d&seed=7", server.URL, size))
	if err != nil {
		t.Fatal(err)
	}
	up, err := runJSON[transferReport](t, upload, "--url", server.URL+"/sum", "--bytes", fmt.Sprint(size), "--seed", "7")
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []transferReport{down, up} {
		if got.Bytes != size || got.SHA256 != got.Want || got.SHA256 != down.SHA256 {
			t.Errorf("report %+v", got)
		}
	}
	other, err := runJSON[transferReport](t, fetch, "--url", fmt.Sprintf("%s/bytes?n=%d&seed=8", server.URL, size), "--sha256", down.SHA256)
	if !errors.Is(err, errFailed) || other.SHA256 == down.SHA256 {
		t.Errorf("another seed: got %+v, %v", other, err)
	}
}

func TestServerRefuses(t *testing.T) {
	server := newServer(t)
	for path, want := range map[string]int{
		"/bytes?n=-1":         http.StatusBadRequest,
		"/bytes?n=1073741825": http.StatusBadRequest,
		"/bytes?n=x":          http.StatusBadRequest,
		"/bytes?n=1&seed=x":   http.StatusBadRequest,
		"/slow?for=x":         http.StatusBadRequest,
		"/slow?for=1ms":       http.StatusOK,
		"/absent":             http.StatusNotFound,
		"/sum":                http.StatusMethodNotAllowed,
	} {
		response, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, response.Status, want)
		}
	}
}

func TestUDP(t *testing.T) {
	server, err := listenUDP(":0", identity{Pod: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.serve() }()
	t.Cleanup(func() {
		server.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("serve: %v, want it to end because it was closed", err)
		}
	})
	for address, client := range map[string]string{
		// Another address than the one that routes choose: it must be answered from there.
		"127.0.0.2:" + portOf(t, server.v4.LocalAddr().String()): "127.0.0.1",
		"[::1]:" + portOf(t, server.v6.LocalAddr().String()):     "::1",
	} {
		got, err := runJSON[report](t, udp, "--to", address, "--count", "20", "--size", "1000")
		if err != nil {
			t.Fatalf("%s: %v: %+v", address, err, got)
		}
		if got.Requests != 20 || got.PerPod["p1"] != 20 || got.PerNode["-"] != 20 || got.Clients[client] != 20 {
			t.Errorf("%s: report %+v", address, got)
		}
		pushed, err := runJSON[answer](t, push, "--to", address, "--after", "20ms")
		if err != nil || pushed.Pod != "p1" {
			t.Errorf("%s: pushed by %+v, %v", address, pushed, err)
		}
	}
}

func TestLaterWanted(t *testing.T) {
	for payload, want := range map[string]time.Duration{
		"later 2s": 2 * time.Second, "later 2s more": 2 * time.Second,
		"later": 0, "later 2": 0, "later -2s": 0, "later 6m": 0, "sooner 2s": 0, "": 0,
	} {
		if got, found := laterWanted([]byte(payload)); got != want && found || found != (want != 0) {
			t.Errorf("%q: %s, %t, want %s", payload, got, found, want)
		}
	}
}

func portOf(t *testing.T, address string) string {
	t.Helper()
	return address[strings.LastIndexByte(address, ':')+1:]
}

func TestUDPWithoutAnswer(t *testing.T) {
	// Port 9 is discard; nobody listens there, and the kernel says so.
	got, err := runJSON[report](t, udp, "--to", "127.0.0.1:9", "--count", "3", "--timeout", "100ms")
	if !errors.Is(err, errFailed) || got.Errors != 3 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParseReply(t *testing.T) {
	got, err := parseReply("p n 198.51.100.1:5 a b", "a b")
	if want := (answer{identity: identity{Pod: "p", Node: "n"}, Client: "198.51.100.1:5"}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, reply := range []string{"", "p n", "p n c", "p n c other"} {
		if _, err := parseReply(reply, "payload"); err == nil {
			t.Errorf("%q: want an error", reply)
		}
	}
}

func TestQuantile(t *testing.T) {
	times := make([]time.Duration, 100)
	for i := range times {
		times[i] = time.Duration(i+1) * time.Millisecond
	}
	for _, test := range []struct{ q, want float64 }{{0, 1}, {0.5, 50}, {0.99, 99}, {1, 100}} {
		if got := quantile(times, test.q); got != test.want {
			t.Errorf("quantile %v is %v, want %v", test.q, got, test.want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("quantile of nothing is %v", got)
	}
	if got := quantile(times[:1], 0.99); got != 1 {
		t.Errorf("quantile of one is %v", got)
	}
}

// TestServeFinishesRequests ends the server while a request is in flight.
func TestServeFinishesRequests(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	datagrams, err := listenUDP(":0", identity{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		cancel()
		// The server has begun to end when it takes no new connection.
		for {
			connection, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				break
			}
			connection.Close()
		}
		fmt.Fprint(w, "finished")
	})
	ended := make(chan error, 1)
	go func() { ended <- serveUntil(ctx, listener, datagrams, &site{handler, newStreams(identity{})}, 0) }()

	response, err := http.Get("http://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "finished" {
		t.Errorf("got %q, %v", body, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("serve: %v", err)
	}
}

// TestServeLingers tells the server to end: it serves new connections and datagrams on
// until its time is over.
func TestServeLingers(t *testing.T) {
	const linger = 2 * time.Second
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	datagrams, err := listenUDP(":0", identity{Pod: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	told := time.Now()
	cancel()
	go func() { ended <- serveUntil(ctx, listener, datagrams, newSite(identity{Pod: "p1"}), linger) }()
	if got, err := runJSON[report](t, load, "--url", "http://"+listener.Addr().String(), "--requests", "10", "--keepalive=false"); err != nil {
		t.Errorf("new connections: %v: %+v", err, got)
	}
	to := "127.0.0.1:" + portOf(t, datagrams.v4.LocalAddr().String())
	if got, err := runJSON[report](t, udp, "--to", to, "--count", "10"); err != nil {
		t.Errorf("datagrams: %v: %+v", err, got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(told); took < linger {
		t.Errorf("it ended after %s, want %s", took, linger)
	}
	if _, err := net.Dial("tcp", listener.Addr().String()); err == nil {
		t.Error("it still takes connections")
	}
}
