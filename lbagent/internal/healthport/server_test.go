// SPDX-License-Identifier: Apache-2.0

package healthport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
	"github.com/millrace-lb/millrace/test/isolated"
)

const (
	proxyPort = 10256
	patience  = 10 * time.Second
)

func TestMain(m *testing.M) { isolated.Main(m) }

type node struct {
	t    *testing.T
	sick atomic.Bool
	*Server
}

func newNode(t *testing.T) *node {
	t.Helper()
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("ip link set lo up: %v: %s", err, out)
	}
	n := &node{t: t}
	n.Server = New(Config{
		ProxyPort: proxyPort, GracePeriod: time.Second, PollInterval: 20 * time.Millisecond, RetryInterval: 50 * time.Millisecond,
		Alive: func() error {
			if n.sick.Load() {
				return errors.New("a pass hangs")
			}
			return nil
		},
		Logger: logr.Discard(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v, want context.Canceled", err)
		}
		if n.get("127.0.0.1:30001") != none {
			t.Error("a port is still open after the end of Run")
		}
	})
	return n
}

var (
	shop = Check{Service: model.ServiceName{Namespace: "shop", Name: "web"}, Endpoints: 2}
	port = Key{Port: 30001}
)

const none = "nobody"

func (n *node) get(address string) string {
	n.t.Helper()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + address + "/healthz")
	if err != nil {
		return none
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return fmt.Sprintf("%d %s %s %s\n%s", response.StatusCode, response.Header.Get("X-Load-Balancing-Endpoint-Weight"),
		response.Header.Get("Content-Type"), response.Header.Get("X-Content-Type-Options"), body)
}

func (n *node) await(address, want string) {
	n.t.Helper()
	got := ""
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got = n.get(address); strings.HasPrefix(got, want) {
			return
		}
	}
	n.t.Fatalf("%s: response %q, want %q", address, got, want)
}

// holds fails if the response changes within the Server's patience.
func (n *node) holds(address, want string) {
	n.t.Helper()
	for end := time.Now().Add(3 * time.Second / 2); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got := n.get(address); !strings.HasPrefix(got, want) {
			n.t.Fatalf("%s: response %q, want %q", address, got, want)
		}
	}
}

func (n *node) occupy(address string) net.Listener {
	n.t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// TestAnswers compares the responses with those of kube-proxy 1.36, byte by byte.
func TestAnswers(t *testing.T) {
	n := newNode(t)
	n.Set(map[Key]Check{port: shop, {Port: 30001, IPv6: true}: {Service: shop.Service, Endpoints: 1}, {Port: 30002}: {Service: shop.Service}}, true)
	body := func(endpoints int, healthy bool) string {
		return fmt.Sprintf("application/json nosniff\n{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\t"+
			"\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %t\n}", endpoints, healthy)
	}
	n.await("127.0.0.1:30001", "200 2 "+body(2, true))
	n.await("[::1]:30001", "200 1 "+body(1, true))
	n.await("127.0.0.1:30002", "503 0 "+body(0, true))
	if got := n.get("[::1]:30002"); got != none {
		t.Errorf("address family not used by the Service: %q", got)
	}
	n.sick.Store(true)
	n.await("127.0.0.1:30001", "503 2 "+body(2, false))
	n.sick.Store(false)
	n.Set(map[Key]Check{port: shop}, false)
	n.await("127.0.0.1:30001", "503 2 "+body(2, false))
	n.await("[::1]:30001", none)
	n.Set(map[Key]Check{port: {Service: model.ServiceName{Namespace: "other", Name: "dns"}, Endpoints: 7}}, true)
	n.await("127.0.0.1:30001", "200 7 application/json nosniff\n{\n\t\"service\": {\n\t\t\"namespace\": \"other\"")
	n.Set(nil, true)
	n.await("127.0.0.1:30001", none)
}

// TestServiceProxyTakesPrecedence checks that a service proxy can bind the ports at any time, and keeps
// them during a restart.
func TestServiceProxyTakesPrecedence(t *testing.T) {
	for _, address := range []string{"127.0.0.1:10256", "[::]:10256"} {
		t.Run(address, func(t *testing.T) {
			n := newNode(t)
			proxy := n.occupy(address)
			n.Set(map[Key]Check{port: shop}, true)
			n.holds("127.0.0.1:30001", none)
			_ = proxy.Close()
			n.await("127.0.0.1:30001", "200 2")
			proxy = n.occupy(address)
			n.await("127.0.0.1:30001", none)
			// Like kube-proxy.
			taken := n.occupy("0.0.0.0:30001")
			_ = taken.Close()
			_ = proxy.Close()
			proxy = n.occupy(address)
			n.holds("127.0.0.1:30001", none)
			_ = proxy.Close()
		})
	}
}

// TestTakenPort checks that a process keeps a port that it has bound to any address, and that the Server
// opens the port afterwards.
func TestTakenPort(t *testing.T) {
	for _, address := range []string{"127.0.0.1:30001", "0.0.0.0:30001"} {
		t.Run(address, func(t *testing.T) {
			n := newNode(t)
			other := n.occupy(address)
			n.Set(map[Key]Check{port: shop, {Port: 30002}: shop}, true)
			n.await("127.0.0.1:30002", "200 2")
			_ = other.Close()
			n.await("127.0.0.1:30001", "200 2")
			if second, err := net.Listen("tcp", address); err == nil {
				_ = second.Close()
				t.Errorf("another process can also listen on %s", address)
			}
		})
	}
}

func TestListed(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2810 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 2 1 0 100 0 0 10 0
   2: 0100007F:01BB 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 3 1 0 20 4 30 10 -1
`
	for port, want := range map[uint16]bool{10256: true, 8080: true, 443: false, 80: false} {
		if got, err := isListening(strings.NewReader(table), port); got != want || err != nil {
			t.Errorf("isListening(%d) = %t, %v, want %t", port, got, err, want)
		}
	}
	for _, empty := range []string{"", "  sl  local_address\n"} {
		if got, err := isListening(strings.NewReader(empty), 80); got || err != nil {
			t.Errorf("isListening with an empty table = %t, %v", got, err)
		}
	}
}

// TestHeldConnections checks that idle connections of clients do not prevent responses to others.
func TestHeldConnections(t *testing.T) {
	n := newNode(t)
	n.Set(map[Key]Check{port: shop}, true)
	n.await("127.0.0.1:30001", "200 2")
	first, err := net.Dial("tcp", "127.0.0.1:30001")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = first.Close() })
	for range maxConnections {
		conn, err := net.Dial("tcp", "127.0.0.1:30001")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	// Earlier than the header timeout of five seconds.
	_ = first.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest connection was not closed: %v", err)
	}
	began := time.Now()
	if got := n.get("127.0.0.1:30001"); !strings.HasPrefix(got, "200 2") {
		t.Errorf("with %d idle connections: %q after %s", maxConnections, got, time.Since(began))
	}
}

// TestFloodOfConnections checks that a flood of connections from one source does not close those of a
// load balancer.
func TestFloodOfConnections(t *testing.T) {
	n := newNode(t)
	n.Set(map[Key]Check{port: shop}, true)
	n.await("127.0.0.1:30001", "200 2")
	dial := func(source net.IP) net.Conn {
		t.Helper()
		conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: source}}).Dial("tcp", "127.0.0.1:30001")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	check := func(conn net.Conn) error {
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		return err
	}
	balancer := dial(net.IPv4(127, 0, 0, 2))
	if err := check(balancer); err != nil {
		t.Fatal(err)
	}
	for range 2 * maxConnections {
		dial(net.IPv4(127, 0, 0, 3))
	}
	if err := check(balancer); err != nil {
		t.Errorf("connection opened before the flood: %v", err)
	}
	if err := check(dial(net.IPv4(127, 0, 0, 2))); err != nil {
		t.Errorf("connection opened during the flood: %v", err)
	}
}
