// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/millrace-lb/millrace/api/flowhash"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

func (n *network) reopen(t testing.TB, node *node, cfg Config) {
	t.Helper()
	if err := node.dataplane.Close(); err != nil {
		t.Fatal(err)
	}
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	node.dataplane, node.cfg = d, cfg
	t.Cleanup(func() { d.Close() })
}

type load struct {
	stop     atomic.Bool
	answered atomic.Int64
	done     sync.WaitGroup
}

func startLoad(t *testing.T, to ...netip.AddrPort) *load {
	t.Helper()
	l := &load{}
	for _, to := range to {
		for range 4 {
			conn := dialUDP(t, to)
			l.done.Go(func() {
				defer conn.Close()
				for !l.stop.Load() {
					if _, err := askAgain(conn, 100); err != nil {
						t.Errorf("packet to %s was lost: %v", to, err)
						return
					}
					l.answered.Add(1)
				}
			})
		}
	}
	return l
}

func (l *load) await(t *testing.T, answers int64) {
	t.Helper()
	goal := l.answered.Load() + answers
	for deadline := time.Now().Add(2 * patience); l.answered.Load() < goal; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) || t.Failed() {
			t.Fatalf("%d replies are missing", goal-l.answered.Load())
		}
	}
}

func (l *load) end() {
	l.stop.Store(true)
	l.done.Wait()
}

// Restarts under load lose no packet, with unchanged and resized maps. Connections keep their pods although
// new ones would select others.
func TestUpgrade(t *testing.T) { inBothWays(t, testUpgrade) }

func testUpgrade(t *testing.T, clsact bool) {
	n := startNetwork(t, clsact)
	sessions := n.openSessions(t, 12)
	// The second node now sends new flows to its second pod only.
	node2 := n.nodes[1]
	n.moveEndpoints(t, node2)
	running := startLoad(t, netip.AddrPortFrom(vip4, clusterPort), netip.AddrPortFrom(vip6, localPort))
	defer running.end()
	running.await(t, 200)
	larger := node2.cfg
	larger.Connections *= 2
	larger.Limits.Endpoints *= 2
	smaller := larger
	smaller.Connections /= 4
	smaller.Limits.NodeTables--
	for _, step := range []struct {
		name string
		cfg  Config
		want AdoptionKind
	}{
		{"same", node2.cfg, Adopted}, {"larger", larger, Resized}, {"smaller", smaller, Resized}, {"same maps again", smaller, Adopted},
	} {
		before, err := node2.dataplane.Dump()
		if err != nil {
			t.Fatal(err)
		}
		n.reopen(t, node2, step.cfg)
		if got := node2.dataplane.Adoption(); got.Kind != step.want {
			t.Errorf("%s: %+v, want %s", step.name, got, step.want)
		}
		after, err := node2.dataplane.Dump()
		if err != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("%s: state %+v, %v; previously %+v", step.name, after, err, before)
		}
		running.await(t, 200)
		// Connections opened before the programs are replaced must also survive.
		late := n.openSessions(t, 4)
		n.attach(t, node2, node2.uplink)
		running.await(t, 200)
		exchangeAll(t, append(sessions, late...))
	}
	running.end()
	for _, node := range n.nodes {
		checkNoDrops(t, node)
	}
}

func (n *network) openSessions(t *testing.T, count int) []*session {
	t.Helper()
	var sessions []*session
	for range count / 2 {
		sessions = append(sessions, connect(t, netip.AddrPortFrom(vip4, clusterPort)), connect(t, netip.AddrPortFrom(vip6, clusterPort)))
	}
	exchangeAll(t, sessions)
	return sessions
}

// openSessionsOnAll opens more than count sessions if the hashes of the client's ports omit a node.
func (n *network) openSessionsOnAll(t *testing.T, count int) []*session {
	t.Helper()
	sessions := n.openSessions(t, count)
	for _, node := range n.nodes {
		serves := func(s *session) bool {
			return slices.ContainsFunc(node.pods, func(p pod) bool { return p.name == s.pod })
		}
		for len(sessions) < 20*count && !slices.ContainsFunc(sessions, serves) {
			sessions = append(sessions, n.openSessions(t, 2)...)
		}
	}
	return sessions
}

func (n *network) moveEndpoints(t *testing.T, node *node) {
	t.Helper()
	have := n.state(node)
	want := *have
	want.EndpointTables = map[forwarding.EndpointTableSlot]*forwarding.EndpointTable{1: {}, 2: {}}
	last := forwarding.EndpointID(2 * len(node.pods))
	for row := range forwarding.EndpointRows {
		want.EndpointTables[1][row], want.EndpointTables[2][row] = last-1, last
	}
	apply(t, node.dataplane, forwarding.Diff(have, &want)...)
}

// Maps of another version are replaced by empty ones at Attach. Packets may be lost meanwhile, but
// connections use the same endpoint again.
func TestRebuild(t *testing.T) {
	n := startNetwork(t, false)
	sessions := n.openSessions(t, 12)
	running := startLoad(t, netip.AddrPortFrom(vip4, clusterPort), netip.AddrPortFrom(vip6, clusterPort))
	defer running.end()
	running.await(t, 100)
	node2 := n.nodes[1]
	changeSchema(t, node2.cfg.PinRoot, func(content []byte) { content[0]++ })
	n.reopen(t, node2, node2.cfg)
	if got := node2.dataplane.Adoption(); got.Kind != Rebuilt || got.Reason == "" {
		t.Errorf("adoption = %+v, want %s with a reason", got, Rebuilt)
	}
	state, err := node2.dataplane.Dump()
	if err != nil || !reflect.DeepEqual(state, forwarding.NewState()) {
		t.Errorf("state = %+v, %v; want empty", state, err)
	}
	// The previous programs use the previous maps until the new ones are attached.
	running.await(t, 100)
	running.end()
	exchangeAll(t, sessions)
	apply(t, node2.dataplane, forwarding.Diff(state, n.state(node2))...)
	n.attach(t, node2, node2.uplink)
	exchangeAll(t, append(sessions, n.openSessions(t, 6)...))
	checkNoDrops(t, node2)
}

func changeSchema(t *testing.T, root string, change func(content []byte)) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap(filepath.Join(root, mapDirectory, schemaMap), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	content := make([]byte, m.ValueSize())
	if err := m.Lookup(uint32(0), content); err != nil {
		t.Fatal(err)
	}
	change(content)
	if err := m.Put(uint32(0), content); err != nil {
		t.Fatal(err)
	}
}

// The seed is stored with the maps. Maps of another seed are replaced, and all nodes use the new one.
func TestSeed(t *testing.T) {
	n := startNetwork(t, false)
	reopen := func(node *node, seed flowhash.Seed, want AdoptionKind) {
		before := node.cfg.Seed
		cfg := node.cfg
		cfg.Seed = seed
		n.reopen(t, node, cfg)
		adoption := node.dataplane.Adoption()
		if adoption.Kind != want || want == Rebuilt && !strings.Contains(adoption.Reason, "filled with "+fmt.Sprint(before)) {
			t.Errorf("%v after %v: %+v, want %s", seed, before, adoption, want)
		}
		if pinned, found, err := PinnedSeed(cfg.PinRoot); pinned != seed || !found || err != nil {
			t.Errorf("PinnedSeed = %v, %t, %v; want %v", pinned, found, err, seed)
		}
	}
	seed := flowhash.Seed{31: 1}
	for _, node := range n.nodes {
		reopen(node, seed, Rebuilt)
		apply(t, node.dataplane, forwarding.Diff(forwarding.NewState(), n.state(node))...)
		n.attach(t, node, node.uplink)
		if read, err := Read(node.cfg.PinRoot); err != nil || len(read.Frontends) == 0 {
			t.Errorf("Read beside a running agent = %+v, error %v", read, err)
		}
	}
	n.openSessions(t, 6)
	for _, node := range n.nodes {
		checkNoDrops(t, node)
	}
	reopen(n.nodes[1], seed, Adopted)
	reopen(n.nodes[1], flowhash.Seed{}, Rebuilt)
	if seed, found, err := PinnedSeed(filepath.Join(n.nodes[0].cfg.PinRoot, "none")); found || err != nil {
		t.Errorf("PinnedSeed without pins = %v, error %v", seed, err)
	}
}
