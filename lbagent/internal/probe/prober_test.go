// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/millrace-lb/millrace/lbagent/internal/fib"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/membership"
)

const testPort = 47482

// responder answers on a loopback address like a node's XDP program.
type responder struct {
	id     forwarding.NodeID
	socket *net.UDPConn
	key    Key
	// silent simulates a dead node, forged invalid tags.
	silent, forged atomic.Bool
	hangs          atomic.Bool
	narrow         atomic.Bool
}

func newResponder(t testing.TB, id forwarding.NodeID, key Key) *responder {
	t.Helper()
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 81, byte(id)), Port: Port})
	if err != nil {
		t.Fatal(err)
	}
	r := &responder{id: id, socket: socket, key: key}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.run()
	}()
	t.Cleanup(func() {
		_ = socket.Close()
		<-stopped
	})
	return r
}

func (r *responder) run() {
	b := make([]byte, maxPacket)
	for {
		n, from, err := r.socket.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		m, ok := decode(b[:min(n, messageSize)], []Key{r.key})
		if !ok || n > messageSize && r.narrow.Load() || m.kind != request || m.to != r.id || r.silent.Load() {
			continue
		}
		m.kind = answer
		if r.hangs.Load() {
			m.kind = agentSilent
		}
		key := r.key
		if r.forged.Load() {
			key[0] ^= 0x80
		}
		reply := m.encode(key)
		copy(b, reply[:])
		_, _ = r.socket.WriteToUDPAddrPort(b[:n], from)
	}
}

func target4(id int) fib.Target {
	return fib.Target{Source: netip.MustParseAddr("127.0.81.1"), Destination: netip.AddrFrom4([4]byte{127, 0, 81, byte(id)})}
}

func startProber(t testing.TB, want Want) *Prober {
	t.Helper()
	p, _ := resumeProber(t, want, nil)
	return p
}

// resumeProber starts a prober with the state of a previous one; end stops it.
func resumeProber(t testing.TB, want Want, previous []membership.Known) (_ *Prober, end func()) {
	t.Helper()
	p := New(testPort, logr.Discard())
	p.Resume(previous)
	p.SetTargets(want)
	return p, run(t, p)
}

func run(t testing.TB, p *Prober) (end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = p.Run(ctx)
	}()
	end = func() {
		stop()
		<-stopped
	}
	t.Cleanup(end)
	return end
}

func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout after 20 s: %s", what)
		}
	}
}

func isDown(p *Prober, id forwarding.NodeID) bool {
	_, found := p.Verdict().Down[id]
	return found
}

// Silent nodes and nodes with invalid tags are down until they answer.
func TestProber(t *testing.T) {
	keys := []Key{{1}, {2}}
	want := Want{Self: 1, Targets: map[forwarding.NodeID]fib.Target{}, Keys: keys}
	var nodes []*responder
	for id := 2; id <= 6; id++ {
		nodes = append(nodes, newResponder(t, forwarding.NodeID(id), keys[0]))
		want.Targets[forwarding.NodeID(id)] = target4(id)
	}
	p := startProber(t, want)
	await(t, "probes are answered", func() bool { return p.Counters().Answered > 20 })
	if v := p.Verdict(); len(v.Down)+len(v.Held) > 0 {
		t.Fatalf("all nodes reply, but the verdict is %+v", v)
	}
	nodes[0].silent.Store(true)
	await(t, "node 2 is down", func() bool { return isDown(p, 2) })
	nodes[1].forged.Store(true)
	await(t, "node 3 is down", func() bool { return isDown(p, 3) })
	nodes[0].silent.Store(false)
	nodes[1].forged.Store(false)
	await(t, "both are back", func() bool { return len(p.Verdict().Down) == 0 })
	for _, node := range nodes[:4] {
		node.silent.Store(true)
	}
	await(t, "four of six are held", func() bool { return len(p.Verdict().Held) == 4 })
	if down := p.Verdict().Down; len(down) > 0 {
		t.Errorf("cut off, but %v are down", down)
	}
}

// RouterAnswer accepts answers of nodes with working and silent agents, and no requests.
func TestRouterAnswer(t *testing.T) {
	key := Key{1}
	for kind, want := range map[kind]bool{request: false, answer: true, agentSilent: true} {
		reply := message{kind: kind, from: 1, to: 2, nonce: 3}.encode(key)
		if node, nonce, ok := RouterAnswer(reply[:], []Key{key}, 1); ok != want || ok && (node != 2 || nonce != 3) {
			t.Errorf("kind %d: node %d, nonce %d, %v; want %v", kind, node, nonce, ok, want)
		}
	}
}

// A node with a silent agent is up and named in the verdict.
func TestProberNamesHangingAgents(t *testing.T) {
	want := Want{Self: 1, Targets: map[forwarding.NodeID]fib.Target{}, Keys: []Key{{1}}}
	var nodes []*responder
	for id := 2; id <= 4; id++ {
		nodes = append(nodes, newResponder(t, forwarding.NodeID(id), want.Keys[0]))
		want.Targets[forwarding.NodeID(id)] = target4(id)
	}
	p := startProber(t, want)
	await(t, "probes are answered", func() bool { return p.Counters().Answered > 20 })
	nodes[0].hangs.Store(true)
	await(t, "node 2 is alone", func() bool { return !p.Verdict().AgentSilent[2].IsZero() })
	if v := p.Verdict(); len(v.Down)+len(v.Held) > 0 || len(v.AgentSilent) > 1 {
		t.Errorf("verdict = %+v", v)
	}
	nodes[0].hangs.Store(false)
	await(t, "node 2 is not", func() bool { return len(p.Verdict().AgentSilent) == 0 })
	nodes[0].hangs.Store(true)
	await(t, "node 2 is alone", func() bool { return !p.Verdict().AgentSilent[2].IsZero() })
	nodes[0].silent.Store(true)
	await(t, "node 2 is down, and its agent is still silent", func() bool { return isDown(p, 2) && !p.Verdict().AgentSilent[2].IsZero() })
}

// A resumed prober immediately reports the saved down nodes and detects those that died meanwhile. A
// reassigned ID is not resumed.
func TestProberResumes(t *testing.T) {
	want := Want{Self: 1, Targets: map[forwarding.NodeID]fib.Target{}, Keys: []Key{{1}}}
	var nodes []*responder
	for id := 2; id <= 8; id++ {
		nodes = append(nodes, newResponder(t, forwarding.NodeID(id), want.Keys[0]))
		want.Targets[forwarding.NodeID(id)] = target4(id)
	}
	first, end := resumeProber(t, want, nil)
	await(t, "all nodes known", func() bool { return len(first.Known()) == len(nodes) })
	nodes[0].silent.Store(true)
	await(t, "node 2 reported as down", func() bool {
		known := first.Known()
		return isDown(first, 2) && known[0].ID == 2 && !known[0].Lost.IsZero()
	})
	end()

	nodes[1].silent.Store(true)
	moved := want
	moved.Targets = map[forwarding.NodeID]fib.Target{}
	for id, to := range want.Targets {
		moved.Targets[id] = to
	}
	moved.Targets[8] = target4(88)
	next := New(testPort, logr.Discard())
	next.Resume(first.Known())
	if !isDown(next, 2) || len(next.Verdict().Down) != 1 || len(next.Known()) != len(nodes) {
		t.Errorf("first verdict = %+v for %d nodes", next.Verdict(), len(next.Known()))
	}
	second, end := resumeProber(t, moved, first.Known())
	await(t, "node 3 is down", func() bool { return isDown(second, 3) })
	if v := second.Verdict(); len(v.Down) != 2 || len(v.Held) > 0 {
		t.Errorf("verdict = %+v, want nodes 2 and 3 down", v)
	}
	end()
	for _, known := range second.Known() {
		if known.ID == 8 || known.Address != moved.Targets[known.ID].Destination {
			t.Errorf("known node = %+v", known)
		}
	}
}

// A path is narrow until a long probe arrives, and its node stays up.
func TestNarrowPath(t *testing.T) {
	want := Want{Self: 1, Targets: map[forwarding.NodeID]fib.Target{2: target4(2), 3: target4(3)}, Keys: []Key{{1}}}
	narrow := newResponder(t, 2, want.Keys[0])
	newResponder(t, 3, want.Keys[0])
	narrow.narrow.Store(true)
	p := startProber(t, want)
	await(t, "the path to node 2 is narrow", func() bool { return !p.Verdict().LowMTU[2].IsZero() })
	if v := p.Verdict(); len(v.LowMTU) != 1 || len(v.Down)+len(v.Held) > 0 {
		t.Errorf("verdict = %+v", v)
	}
	narrow.narrow.Store(false)
	await(t, "large packets reach node 2 again", func() bool { return len(p.Verdict().LowMTU) == 0 })
}

// With two nodes a router decides which one is cut off.
func TestProberOfTwo(t *testing.T) {
	want := Want{Self: 1, Targets: map[forwarding.NodeID]fib.Target{2: target4(2)}, Keys: []Key{{1}}}
	other := newResponder(t, 2, want.Keys[0])
	var router atomic.Bool
	p := New(testPort, logr.Discard())
	p.SetWitness(func(now time.Time) time.Time {
		if router.Load() {
			return now
		}
		return time.Time{}
	})
	p.SetTargets(want)
	run(t, p)
	await(t, "probes are answered", func() bool { return p.Counters().Answered > 5 })
	other.silent.Store(true)
	await(t, "node 2 is held", func() bool { return len(p.Verdict().Held) > 0 })
	if isDown(p, 2) {
		t.Error("node 2 is down although no router packet arrived")
	}
	router.Store(true)
	await(t, "node 2 is down", func() bool { return isDown(p, 2) && len(p.Verdict().Held) == 0 })
	other.silent.Store(false)
	await(t, "node 2 is back", func() bool { return !isDown(p, 2) })
}

// Answers need a valid tag, the probed address and a sent nonce.
func TestOnlyAnswersCount(t *testing.T) {
	p := New(testPort, logr.Discard())
	key := Key{9}
	p.SetTargets(Want{Self: 1, Targets: map[forwarding.NodeID]fib.Target{2: target4(2)}, Keys: []Key{key}})
	p.update(time.Now())
	t.Cleanup(p.sockets.Close)
	p.probe(2, time.Now())
	good := message{kind: answer, from: 1, to: 2, nonce: p.targets[2].nonces[0]}
	local, from := target4(2).Source, netip.AddrPortFrom(target4(2).Destination, Port)
	for name, c := range map[string]struct {
		m     message
		key   Key
		local netip.Addr
		from  netip.AddrPort
		want  bool
	}{
		"other key":         {m: good, local: local, from: from},
		"other address":     {m: good, key: key, local: local, from: netip.AddrPortFrom(local, Port)},
		"other port":        {m: good, key: key, local: local, from: netip.AddrPortFrom(from.Addr(), 1)},
		"other nonce":       {m: message{kind: answer, from: 1, to: 2, nonce: good.nonce + 1}, key: key, local: local, from: from},
		"request":           {m: message{kind: request, from: 1, to: 2, nonce: good.nonce}, key: key, local: local, from: from},
		"from another node": {m: message{kind: answer, from: 1, to: 3, nonce: good.nonce}, key: key, local: local, from: from},
		"for another node":  {m: message{kind: answer, from: 3, to: 2, nonce: good.nonce}, key: key, local: local, from: from},
		"good":              {m: good, key: key, local: local, from: from, want: true},
	} {
		b := c.m.encode(c.key)
		if got := p.isAnswer(b[:], c.local, c.from, time.Now()); got != c.want {
			t.Errorf("%s: isAnswer = %t, want %t", name, got, c.want)
		}
	}
	if b := good.encode(key); p.isAnswer(b[:messageSize-1], local, from, time.Now()) {
		t.Error("a truncated answer was accepted")
	}
}

func FuzzDecode(f *testing.F) {
	b := message{kind: answer, from: 1, to: 2, nonce: 3}.encode(Key{1})
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		m, ok := decode(b, []Key{{1}})
		if again := m.encode(Key{1}); ok && string(again[8:]) != string(b[8:]) {
			t.Errorf("%x decoded as %+v", b, m)
		}
	})
}
