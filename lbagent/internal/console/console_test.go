// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

const patience = 20 * time.Second

type samples struct {
	drops chan dataplane.Drop
	once  sync.Once
	done  chan struct{}
}

func newSamples() *samples {
	return &samples{drops: make(chan dataplane.Drop), done: make(chan struct{})}
}

func (s *samples) Next() (dataplane.Drop, error) {
	select {
	case drop := <-s.drops:
		return drop, nil
	case <-s.done:
		return dataplane.Drop{}, io.EOF
	}
}

func (s *samples) Close() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

type plane struct {
	counters dataplane.Counters
	trace    dataplane.Trace
	err      error

	mu     sync.Mutex
	traced []byte
}

func (p *plane) CountersOf(wanted func(forwarding.FrontendKey) bool) (dataplane.Counters, error) {
	counters := p.counters
	counters.Frontends = map[forwarding.FrontendKey]dataplane.FrontendCounters{}
	for key, counter := range p.counters.Frontends {
		if wanted != nil && wanted(key) {
			counters.Frontends[key] = counter
		}
	}
	return counters, p.err
}

func (p *plane) Trace(packet []byte) (dataplane.Trace, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traced = packet
	return p.trace, p.err
}

var (
	webKey  = forwarding.FrontendKey{VIP: netip.MustParseAddr("203.0.113.1"), Port: 80, Protocol: 6}
	webPort = netip.MustParseAddrPort("203.0.113.1:80")
	client  = netip.MustParseAddrPort("198.51.100.1:40000")
)

func testDirectory() *Directory {
	return &Directory{
		Node:     "node1",
		Zone:     "east",
		Services: map[forwarding.FrontendKey]string{webKey: "default/web"},
		Nodes:    map[forwarding.NodeID]string{1: "node1", 2: "node2", 3: "node3"},
	}
}

type rig struct {
	path      string
	hub       *Hub
	samples   *samples
	plane     *plane
	decisions atomic.Pointer[Decisions]
}

func newRig(t *testing.T, p *plane) *rig {
	t.Helper()
	r := &rig{path: filepath.Join(t.TempDir(), "run", "agent.sock"), hub: NewHub(), samples: newSamples(), plane: p}
	listener, err := Listen(r.path)
	if err != nil {
		t.Fatal(err)
	}
	server := Server{DataPlane: p, Hub: r.hub, Directory: testDirectory, Decisions: r.decisions.Load, Speaker: talking{}}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- server.Serve(ctx, listener) }()
	go func() { ended <- r.hub.Run(ctx, r.samples) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("returned %v, want context.Canceled", err)
			}
		}
	})
	return r
}

func (r *rig) ask(t *testing.T, request Request) ([]consoleapi.Line, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out bytes.Buffer
	err := Query(ctx, r.path, request, &out)
	if ctx.Err() != nil {
		t.Fatalf("timeout while waiting for the end of the reply to %+v", request)
	}
	var lines []consoleapi.Line
	for text := range bytes.Lines(out.Bytes()) {
		var line consoleapi.Line
		if err := json.Unmarshal(text, &line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines, err
}

func sample(n int) dataplane.Drop {
	return dataplane.Drop{
		Time: time.Unix(int64(n), 0), Reason: "no_endpoint", Source: client, Destination: webPort,
		Protocol: 6, Length: 40, Interface: 1, Frontend: 5,
	}
}

func TestRecentDrops(t *testing.T) {
	r := newRig(t, &plane{counters: dataplane.Counters{Drops: map[string]uint64{"no_endpoint": 7}, SamplesSkipped: 3, SamplesLost: 1}})
	const sent = recentDrops + 10
	for i := range sent {
		r.samples.drops <- sample(i)
	}
	deadline := time.Now().Add(patience)
	for len(r.hub.history()) < recentDrops || r.hub.history()[recentDrops-1].Time != time.Unix(sent-1, 0) {
		if time.Now().After(deadline) {
			t.Fatal("timeout while waiting for samples")
		}
		time.Sleep(time.Millisecond)
	}
	lines, err := r.ask(t, Request{Command: Drops})
	if err != nil || len(lines) != 1+recentDrops {
		t.Fatalf("%d lines, error %v; want %d", len(lines), err, 1+recentDrops)
	}
	header := consoleapi.Drops{Node: "node1", Reasons: map[string]uint64{"no_endpoint": 7}, Skipped: 3, Lost: 1}
	if !reflect.DeepEqual(*lines[0].Drops, header) {
		t.Errorf("header %+v, want %+v", lines[0].Drops, header)
	}
	for i, line := range lines[1:] {
		want := consoleapi.Drop{
			Time: time.Unix(int64(10+i), 0).UTC(), Node: "node1", Reason: "no_endpoint", Source: client, Destination: webPort,
			Protocol: "TCP", Service: "default/web", Interface: "lo", Length: 40,
		}
		if line.Drop == nil || *line.Drop != want {
			t.Fatalf("sample %d: %+v, want %+v", i, line.Drop, want)
		}
	}
}

// TestSlowReader checks that a fast reader gets every sample while a slow one gets the number of missed
// samples.
func TestSlowReader(t *testing.T) {
	r := newRig(t, &plane{})
	slow, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := io.WriteString(slow, `{"command":"drops","follow":true}`+"\n"); err != nil {
		t.Fatal(err)
	}
	lines := make(chan consoleapi.Line)
	quick, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Query(quick, r.path, Request{Command: Drops, Follow: true}, lineWriter(lines)) }()
	<-lines
	slowLines := json.NewDecoder(slow)
	var header consoleapi.Line
	if err := slowLines.Decode(&header); err != nil || header.Drops == nil {
		t.Fatalf("header %+v, %v", header, err)
	}
	// More than the queue and the socket buffer.
	const sent = 4 * queueLength
	for i := range sent {
		r.samples.drops <- sample(i)
		select {
		case line := <-lines:
			if line.Drop == nil || line.Drop.Time != time.Unix(int64(i), 0).UTC() {
				t.Fatalf("line %d: %+v", i, line)
			}
		case <-time.After(patience):
			t.Fatalf("timeout while waiting for sample %d", i)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	got, missed := 0, uint64(0)
	if err := slow.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for uint64(got)+missed < sent {
		var line consoleapi.Line
		if err := slowLines.Decode(&line); err != nil {
			t.Fatalf("after %d samples, %d missed: %v", got, missed, err)
		}
		missed += line.Missed
		if line.Drop != nil {
			got++
		}
	}
	if missed == 0 || uint64(got)+missed != sent {
		t.Errorf("%d samples and %d missed, want a total of %d", got, missed, sent)
	}
}

type lineWriter chan<- consoleapi.Line

func (w lineWriter) Write(text []byte) (int, error) {
	var line consoleapi.Line
	if err := json.Unmarshal(text, &line); err != nil {
		return 0, err
	}
	w <- line
	return len(text), nil
}

func TestTop(t *testing.T) {
	counters := dataplane.Counters{
		Frontends: map[forwarding.FrontendKey]dataplane.FrontendCounters{
			webKey: {Packets: 10, Bytes: 1000, Connections: 2, Drops: map[string]uint64{"no_endpoint": 1}},
			{VIP: netip.MustParseAddr("2001:db8::1"), Port: 53, Protocol: 17}: {Packets: 1},
			{VIP: netip.MustParseAddr("203.0.113.1"), Port: 8, Protocol: 6}:   {},
		},
		Drops:         map[string]uint64{"no_endpoint": 1},
		TransmitDrops: []dataplane.UplinkTransmitDrops{{Interface: "eth0"}, {Interface: "eth1", Transmit: 1, Redirect: 2}},
	}
	r := newRig(t, &plane{counters: counters})
	lines, err := r.ask(t, Request{Command: Top})
	if err != nil || len(lines) != 1 || lines[0].Counters == nil {
		t.Fatalf("%+v, %v", lines, err)
	}
	got := lines[0].Counters
	if age := time.Since(got.Time); age < 0 || age > patience {
		t.Errorf("unexpected time %s", got.Time)
	}
	want := &consoleapi.Counters{
		Time: got.Time, Node: "node1", Drops: counters.Drops,
		Uplinks: []consoleapi.Uplink{{Interface: "eth1", Transmit: 1, Redirect: 2}},
		Frontends: []consoleapi.Frontend{
			{FrontendName: consoleapi.FrontendName{VIP: webKey.VIP, Port: 8, Protocol: "TCP"}},
			{FrontendName: consoleapi.FrontendName{VIP: webKey.VIP, Port: 80, Protocol: "TCP", Service: "default/web"}, Packets: 10, Bytes: 1000, Connections: 2, Drops: map[string]uint64{"no_endpoint": 1}},
			{FrontendName: consoleapi.FrontendName{VIP: netip.MustParseAddr("2001:db8::1"), Port: 53, Protocol: "UDP"}, Packets: 1},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	again, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	repeated := make(chan consoleapi.Line)
	ended := make(chan error, 1)
	go func() {
		ended <- Query(again, r.path, Request{Command: Top, Interval: minInterval}, lineWriter(repeated))
	}()
	for range 3 {
		select {
		case <-repeated:
		case err := <-ended:
			t.Fatalf("returned %v", err)
		}
	}
	cancel()
}

// TestTopOfSome checks that counters of other frontends are neither read nor sent.
func TestTopOfSome(t *testing.T) {
	other := forwarding.FrontendKey{VIP: netip.MustParseAddr("2001:db8::1"), Port: 53, Protocol: 17}
	r := newRig(t, &plane{counters: dataplane.Counters{
		Frontends: map[forwarding.FrontendKey]dataplane.FrontendCounters{webKey: {Packets: 10}, other: {Packets: 1}},
	}})
	for name, test := range map[string]struct {
		request Request
		want    []netip.Addr
	}{
		"all":                    {Request{}, []netip.Addr{webKey.VIP, other.VIP}},
		"VIP filter":             {Request{Addresses: []netip.Addr{other.VIP}}, []netip.Addr{other.VIP}},
		"namespace filter":       {Request{Namespace: "default"}, []netip.Addr{webKey.VIP}},
		"partial namespace name": {Request{Namespace: "def"}, nil},
		"VIP and namespace":      {Request{Addresses: []netip.Addr{other.VIP}, Namespace: "default"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			test.request.Command = Top
			lines, err := r.ask(t, test.request)
			if err != nil || len(lines) != 1 {
				t.Fatalf("%+v, %v", lines, err)
			}
			var told []netip.Addr
			for _, frontend := range lines[0].Counters.Frontends {
				told = append(told, frontend.VIP)
			}
			if !slices.Equal(told, test.want) {
				t.Errorf("got %v, want %v", told, test.want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t, &plane{err: errors.New("maps are gone")})
	packet := &consoleapi.Packet{Source: client, Destination: webPort}
	for name, test := range map[string]struct {
		request Request
		want    string
	}{
		"command":    {Request{Command: "dance"}, `unknown command "dance"`},
		"interval":   {Request{Command: Top, Interval: time.Millisecond}, "too short"},
		"no packet":  {Request{Command: Trace}, "no packet"},
		"protocol":   {Request{Command: Trace, Packet: &consoleapi.Packet{Source: client, Destination: webPort, Protocol: "gre"}}, `"gre"`},
		"drops":      {Request{Command: Drops}, "maps are gone"},
		"top":        {Request{Command: Top}, "maps are gone"},
		"trace":      {Request{Command: Trace, Packet: packet}, "maps are gone"},
		"families":   {Request{Command: Trace, Packet: &consoleapi.Packet{Source: client, Destination: netip.MustParseAddrPort("[2001:db8::1]:80")}}, "both be IPv4"},
		"no address": {Request{Command: Trace, Packet: &consoleapi.Packet{}}, "both be IPv4"},
	} {
		t.Run(name, func(t *testing.T) {
			lines, err := r.ask(t, test.request)
			if err == nil || !strings.Contains(err.Error(), test.want) || len(lines) != 0 {
				t.Errorf("%d lines, error %v, want one with %s", len(lines), err, test.want)
			}
		})
	}
	if err := Query(t.Context(), filepath.Join(t.TempDir(), "none"), Request{Command: Top}, io.Discard); err == nil || !strings.Contains(err.Error(), "is it running") {
		t.Errorf("without an agent: %v", err)
	}
}

// TestInvalidRequests checks that invalid requests are rejected, and that a silent client does not affect others.
func TestInvalidRequests(t *testing.T) {
	r := newRig(t, &plane{})
	silent, err := net.Dial("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, text := range []string{"\n", "{\n", "GET / HTTP/1.1\n", strings.Repeat("x", 2*maxRequest) + "\n"} {
		conn, err := net.Dial("unix", r.path)
		if err != nil {
			t.Fatal(err)
		}
		// The agent may disconnect before the response is complete.
		_, _ = io.WriteString(conn, text)
		answer, _ := io.ReadAll(conn)
		conn.Close()
		if len(text) < maxRequest && !strings.Contains(string(answer), `"error"`) {
			t.Errorf("reply to %.20q is %q", text, answer)
		}
	}
	if _, err := r.ask(t, Request{Command: Top}); err != nil {
		t.Error(err)
	}
}

func TestTooManyClients(t *testing.T) {
	r := newRig(t, &plane{})
	for range maxClients {
		conn, err := net.Dial("unix", r.path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, `{"command":"drops","follow":true}`+"\n"); err != nil {
			t.Fatal(err)
		}
		if err := json.NewDecoder(conn).Decode(&consoleapi.Line{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.ask(t, Request{Command: Top}); err == nil || !strings.Contains(err.Error(), "clients") {
		t.Errorf("one client too many: error %v", err)
	}
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "agent.sock")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if _, err := Listen(path); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("with a running agent: %v", err)
	}
	// As after a kill: the socket exists without a listener.
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	first.Close()
	second, err := Listen(path)
	if err != nil {
		t.Fatalf("after the agent was killed: %v", err)
	}
	second.Close()
	if _, err := Listen(filepath.Join("/proc", "agent.sock")); err == nil || !strings.Contains(err.Error(), "--socket") {
		t.Errorf("in a directory that is not writable: %v", err)
	}
}

func TestTracedPacket(t *testing.T) {
	p := &plane{trace: dataplane.Trace{Interface: "eth0", Verdict: dataplane.TracePassed}}
	r := newRig(t, p)
	raw := []byte{0x45, 1, 2, 3}
	for name, packet := range map[string]*consoleapi.Packet{
		"made":  {Source: client, Destination: webPort, Protocol: "udp"},
		"given": {Raw: raw},
	} {
		lines, err := r.ask(t, Request{Command: Trace, Packet: packet})
		if err != nil || len(lines) != 1 || lines[0].Trace == nil || lines[0].Trace.Verdict != consoleapi.NotOurs {
			t.Errorf("%s: %+v, %v", name, lines, err)
		}
		p.mu.Lock()
		if name == "given" && !bytes.Equal(p.traced, raw) || name == "made" && (len(p.traced) != 28 || p.traced[9] != 17) {
			t.Errorf("%s: traced packet %x", name, p.traced)
		}
		p.mu.Unlock()
	}
}
