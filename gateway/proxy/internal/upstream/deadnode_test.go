// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/millrace-lb/millrace/gateway/proxy/internal/balance"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/test/isolated"
)

const deadAfter = 35 * time.Second

// TestDeadNode checks that all requests end when the node of two of three endpoints stops responding.
func TestDeadNode(t *testing.T) {
	t.Parallel()
	if !isolated.Test(t) {
		return
	}
	node := newNode(t)
	var cases []*deadCase
	for name, protocol := range map[string]resource.Backend_Protocol{"HTTP/1.1": resource.Backend_HTTP1, "h2c": resource.Backend_H2C} {
		for _, policy := range []*Policy{{}, {Attempts: 2}} {
			c := &deadCase{t: t, name: name, policy: policy, entered: make(chan struct{}, 100)}
			c.backend = c.newBackend(protocol, node)
			c.before()
			cases = append(cases, c)
		}
	}
	node.vanish()
	for _, c := range cases {
		c.after()
	}
	for _, c := range cases {
		c.requests.Wait()
		t.Logf("%s, %d more attempts permitted: at most %s", c.name, c.policy.Attempts, c.longest)
	}
}

type node struct {
	t               *testing.T
	there, between  string
	near, namespace netns.NsHandle
	address         []string
}

func (n *node) run(command string) {
	n.t.Helper()
	fields := strings.Fields(strings.NewReplacer("NODE", n.there, "SWITCH", n.between).Replace(command))
	if out, err := exec.Command(fields[0], fields[1:]...).CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %v: %s", command, err, out)
	}
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, address: []string{"198.51.100.2", "198.51.100.3"}}
	n.there, n.between = fmt.Sprintf("dead-node-%d", os.Getpid()), fmt.Sprintf("dead-switch-%d", os.Getpid())
	t.Cleanup(func() {
		for _, name := range []string{n.there, n.between} {
			_ = exec.Command("ip", "netns", "delete", name).Run()
		}
	})
	for _, command := range []string{
		"ip link set lo up", "ip address add 203.0.113.1/32 dev lo",
		"ip netns add NODE", "ip netns add SWITCH",
		"ip link add eth0 type veth peer name near netns SWITCH",
		"ip link add eth0 netns NODE type veth peer name far netns SWITCH",
		"ip -n SWITCH link add bridge type bridge",
		"ip -n SWITCH link set near master bridge up", "ip -n SWITCH link set far master bridge up",
		"ip -n SWITCH link set bridge up",
		"ip address add 198.51.100.1/24 dev eth0", "ip link set eth0 up",
		"ip -n NODE address add 198.51.100.2/24 dev eth0", "ip -n NODE address add 198.51.100.3/24 dev eth0",
		"ip -n NODE link set eth0 up", "ip -n NODE link set lo up",
	} {
		n.run(command)
	}
	var err error
	if n.near, err = netns.Get(); err == nil {
		n.namespace, err = netns.GetFromName(n.there)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) listen(address string) net.Listener {
	n.t.Helper()
	if err := netns.Set(n.namespace); err != nil {
		n.t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(n.t.Context(), "tcp", net.JoinHostPort(address, "0"))
	if back := netns.Set(n.near); err == nil {
		err = back
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return listener
}

// vanish drops packets to the node in the bridge; carrier and neighbor entries remain.
func (n *node) vanish() {
	n.t.Helper()
	out, err := exec.Command("ip", "-n", n.there, "-brief", "link", "show", "dev", "eth0").Output()
	fields := strings.Fields(string(out))
	if err != nil || len(fields) < 3 {
		n.t.Fatalf("%v: %s", err, out)
	}
	for _, address := range n.address {
		n.run("ip neighbour replace " + address + " lladdr " + fields[2] + " dev eth0 nud permanent")
	}
	n.run("ip -n SWITCH link set far nomaster")
}

type deadCase struct {
	t        *testing.T
	name     string
	policy   *Policy
	backend  *Backend
	entered  chan struct{}
	requests sync.WaitGroup

	mutex   sync.Mutex
	longest time.Duration
}

func (c *deadCase) newBackend(protocol resource.Backend_Protocol, node *node) *Backend {
	c.t.Helper()
	settings := &Settings{
		Balance:     balance.Settings{EjectAfter: 5, EjectFor: 10 * time.Second, EjectForMost: 5 * time.Minute},
		DialTimeout: 3 * time.Second, HandshakeTimeout: 5 * time.Second, IdleTimeout: 50 * time.Second,
		MaxIdlePerEndpoint: 512, MaxResponseHeaderBytes: 256 << 10, ConnectAttempts: 3,
	}
	var list []balance.Address
	listeners := []net.Listener{node.listen(node.address[0]), node.listen(node.address[1])}
	alive, err := new(net.ListenConfig).Listen(c.t.Context(), "tcp", "203.0.113.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, listener := range append(listeners, alive) {
		serving := httptest.NewUnstartedServer(c.answer(listener != alive))
		_ = serving.Listener.Close()
		serving.Listener = listener
		serving.Config.Protocols = new(http.Protocols)
		serving.Config.Protocols.SetHTTP1(true)
		serving.Config.Protocols.SetUnencryptedHTTP2(true)
		serving.Start()
		list = append(list, balance.Address{AddrPort: netip.MustParseAddrPort(listener.Addr().String())})
	}
	set := balance.NewSet(&settings.Balance, list, nil, time.Now())
	return New("backend", &resource.Backend{Protocol: protocol}, settings, Connection{Set: set, Current: Transports{}})
}

// answer responds immediately, except to /wait at endpoints of the node.
func (c *deadCase) answer(waits bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/wait" && waits:
			c.entered <- struct{}{}
			<-r.Context().Done()
			return
		case r.URL.Path == "/together":
			time.Sleep(50 * time.Millisecond)
		}
		_, _ = io.WriteString(w, "fine")
	}
}

// send selects an endpoint of the node first, or a random one.
func (c *deadCase) send(method, path string, prefer int) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*deadAfter)
	defer cancel()
	request := httptest.NewRequestWithContext(ctx, method, "http://shop.example.com"+path, strings.NewReader("body"))
	if method == http.MethodGet {
		request.Body, request.ContentLength = nil, 0
	}
	policy := *c.policy
	if prefer >= 0 {
		policy.Prefer = c.backend.Set.All()[prefer]
	}
	_, _, exchange, err := send(c.t, c.backend, request, &policy)
	took := time.Since(began)
	if took > deadAfter {
		c.t.Errorf("%s, %d more attempts permitted: %s %s took %s and %d attempts: %v; want at most %s",
			c.name, c.policy.Attempts, method, path, took, exchange.Attempts, err, deadAfter)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.longest = max(c.longest, took)
}

func (c *deadCase) before() {
	var warm sync.WaitGroup
	for i := range 12 {
		warm.Go(func() { c.send(http.MethodGet, "/together", i%3) })
	}
	warm.Wait()
	for i := range 2 {
		for range 2 {
			c.requests.Go(func() { c.send(http.MethodGet, "/wait", i) })
			c.requests.Go(func() { c.send(http.MethodPost, "/wait", i) })
		}
	}
	for range 8 {
		<-c.entered
	}
}

func (c *deadCase) after() {
	for i := range 2 {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			c.requests.Go(func() { c.send(method, "/", i) })
			c.requests.Go(func() { c.send(method, "/", -1) })
		}
	}
	c.requests.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for range 30 {
			<-tick.C
			for i := range 3 {
				c.requests.Go(func() { c.send(http.MethodGet, "/", i-1) })
			}
		}
	})
}
