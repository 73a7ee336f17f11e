// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	consoleapi "github.com/millrace-lb/millrace/api/console"
)

// fleet are agents that print prepared lines and then wait for the client, unless they are to end.
type fleet struct {
	lines map[string][]consoleapi.Line
	ends  map[string]error
	trace func(node string, args []string) (consoleapi.Line, error)
	pods  map[string]string
}

func (f fleet) Run(ctx context.Context, node string, args []string, out io.Writer) error {
	if f.trace != nil {
		line, err := f.trace(node, args)
		return errors.Join(err, json.NewEncoder(out).Encode(line))
	}
	for _, line := range f.lines[node] {
		if err := json.NewEncoder(out).Encode(line); err != nil {
			return err
		}
	}
	if err, ends := f.ends[node]; ends {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (f fleet) PodAt(_ context.Context, service, address string) (string, error) {
	return f.pods[service+" "+address], nil
}

type output struct {
	chunks chan string
}

func (o output) Write(text []byte) (int, error) {
	o.chunks <- string(text)
	return len(text), nil
}

func (o output) until(t *testing.T, text string) string {
	t.Helper()
	all := ""
	limit := time.After(30 * time.Second)
	for !strings.Contains(all, text) {
		select {
		case chunk := <-o.chunks:
			all += chunk
		case <-limit:
			t.Fatalf("no %q in %q", text, all)
		}
	}
	return all
}

func dropLine(node, reason, to string) consoleapi.Line {
	return consoleapi.Line{Drop: &consoleapi.Drop{
		Time: time.Unix(0, 0), Node: node, Reason: reason, Protocol: "TCP", Service: "default/web",
		Source: netip.MustParseAddrPort("198.51.100.1:40000"), Destination: netip.MustParseAddrPort(to),
	}}
}

func headLine(node string, count uint64) consoleapi.Line {
	return consoleapi.Line{Drops: &consoleapi.Drops{Node: node, Reasons: map[string]uint64{"no_endpoint": count, "fragment": 0}}}
}

func TestDropsOfManyNodes(t *testing.T) {
	runner := fleet{
		lines: map[string][]consoleapi.Line{
			"node1": {
				headLine("node1", 7), dropLine("node1", "no_endpoint", "203.0.113.1:80"),
				dropLine("node1", "fragment", "203.0.113.1:80"), dropLine("node1", "no_endpoint", "203.0.113.2:80"), {Missed: 3},
			},
			"node2": {headLine("node2", 5), dropLine("node2", "no_endpoint", "203.0.113.1:81")},
		},
		ends: map[string]error{"node3": errors.New("no route to host")},
	}
	stdout := output{make(chan string)}
	var stderr bytes.Buffer
	watch := dropWatch{
		env:    environment{stdout: stdout, stderr: &stderr, width: 120},
		reason: "no_endpoint", vip: netip.MustParseAddr("203.0.113.1"),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- watch.run(ctx, runner, []string{"node1", "node2", "node3"}) }()
	text := stdout.until(t, "SERVICE\n")
	for !strings.Contains(text, "203.0.113.1:81") || !strings.Contains(text, "3 samples of node1") {
		text += <-stdout.chunks
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, want := range []string{"no_endpoint  12       node", "203.0.113.1:80", "default/web"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "fragment") || strings.Contains(text, "203.0.113.2") || strings.Count(text, "TIME") != 1 {
		t.Errorf("too much in\n%s", text)
	}
	if !strings.Contains(stderr.String(), "node3: no route to host") {
		t.Errorf("standard error %q", stderr.String())
	}
}

func TestDropsAsJSON(t *testing.T) {
	runner := fleet{lines: map[string][]consoleapi.Line{"node1": {headLine("node1", 1), {Missed: 2}}}, ends: map[string]error{"node1": nil}}
	var stdout, stderr bytes.Buffer
	watch := dropWatch{env: environment{stdout: &stdout, stderr: &stderr}, json: true}
	if err := watch.run(t.Context(), runner, []string{"node1"}); !errors.Is(err, errAgentsFailed) {
		t.Errorf("ended with %v", err)
	}
	want := `{"node":"node1","drops":{"node":"node1","reasons":{"fragment":0,"no_endpoint":1},"skipped":0,"lost":0}}
{"node":"node1","missed":2}
`
	if stdout.String() != want || !strings.Contains(stderr.String(), "node1: the agent ended") {
		t.Errorf("stdout %s, stderr %s", stdout.String(), stderr.String())
	}
}

func TestDropsOfNoReason(t *testing.T) {
	runner := fleet{lines: map[string][]consoleapi.Line{"node1": {headLine("node1", 1)}}}
	for _, asJSON := range []bool{false, true} {
		var stdout, stderr bytes.Buffer
		watch := dropWatch{env: environment{stdout: &stdout, stderr: &stderr, width: 120}, json: asJSON, reason: "nope"}
		err := watch.run(t.Context(), runner, []string{"node1"})
		if want := "--reason=nope: must be one of fragment, no_endpoint"; err == nil || err.Error() != want {
			t.Errorf("with JSON %t: ended with %v, want %s", asJSON, err, want)
		}
	}
}

func TestNoAgentAnswers(t *testing.T) {
	broken := fleet{ends: map[string]error{"node1": errors.New("forbidden")}}
	var out bytes.Buffer
	env := environment{stdout: &out, stderr: &out}
	if err := (&dropWatch{env: env}).run(t.Context(), broken, []string{"node1"}); !errors.Is(err, errAgentsFailed) {
		t.Errorf("drops: %v", err)
	}
	if err := (&topWatch{env: env, interval: time.Second}).run(t.Context(), broken, []string{"node1"}); !errors.Is(err, errAgentsFailed) {
		t.Errorf("top: %v", err)
	}
	if n := strings.Count(out.String(), "node1: forbidden"); n != 2 {
		t.Errorf("reported %d times: %s", n, out.String())
	}
}

func countersLine(seconds int64, packets uint64) consoleapi.Line {
	return consoleapi.Line{Counters: &consoleapi.Counters{
		Time: time.Unix(seconds, 0), Drops: map[string]uint64{},
		Frontends: []consoleapi.Frontend{{FrontendName: consoleapi.FrontendName{VIP: netip.MustParseAddr("203.0.113.1"), Port: 80, Protocol: "TCP", Service: "default/web"}, Packets: packets, Bytes: 100 * packets}},
	}}
}

func TestTopOnce(t *testing.T) {
	runner := fleet{
		lines: map[string][]consoleapi.Line{
			"node1": {countersLine(10, 0), countersLine(20, 1000)},
			"node2": {countersLine(10, 500), countersLine(15, 600)},
		},
		ends: map[string]error{"node3": errors.New("gone")},
	}
	var stdout, stderr bytes.Buffer
	watch := topWatch{env: environment{stdout: &stdout, stderr: &stderr, width: 100, height: 20}, interval: time.Second, once: true}
	if err := watch.run(t.Context(), runner, []string{"node1", "node2", "node3"}); err != nil {
		t.Fatal(err)
	}
	want := `2 nodes, 1 frontend, over 10 s, drops: none
VIP             PROTO  SERVICE      PACKETS/S  BITS/S  NEW CONN/S  DROPS/S
203.0.113.1:80  TCP    default/web  120        96.0k   0           0
`
	if stdout.String() != want || !strings.Contains(stderr.String(), "node3: gone") {
		t.Errorf("stdout\n%s, want\n%s, stderr %s", stdout.String(), want, stderr.String())
	}
}

func TestTopInPlace(t *testing.T) {
	runner := fleet{lines: map[string][]consoleapi.Line{"node1": {countersLine(10, 0), countersLine(11, 10)}}}
	stdout := output{make(chan string)}
	watch := topWatch{env: environment{stdout: stdout, width: 80, height: 20}, interval: 50 * time.Millisecond}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- watch.run(ctx, runner, []string{"node1"}) }()
	for range 2 {
		if text := stdout.until(t, "10.0"); !strings.HasPrefix(text, clearScreen) {
			t.Errorf("%q does not begin at the top", text)
		}
	}
	go func() {
		for range stdout.chunks {
		}
	}()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func hopLine(hop consoleapi.Trace) consoleapi.Line { return consoleapi.Line{Trace: &hop} }

func TestTraceFromNodeToNode(t *testing.T) {
	var commands [][]string
	runner := fleet{
		pods: map[string]string{"default/web 198.18.2.5": "default/web-abc"},
		trace: func(node string, args []string) (consoleapi.Line, error) {
			commands = append(commands, append([]string{node}, args...))
			if node == "node1" {
				return hopLine(consoleapi.Trace{
					Node: node, Interface: "eth0", Verdict: consoleapi.Sent, NextNode: "node2", Packet: []byte{1, 2, 3}, Service: "default/web",
					Steps: []consoleapi.Step{{Name: "primary", Text: "node2"}},
				}), nil
			}
			return hopLine(consoleapi.Trace{
				Node: node, Interface: "bond0", Verdict: consoleapi.Delivered, Service: "default/web",
				Endpoint: netip.MustParseAddrPort("198.18.2.5:8080"),
				Steps:    []consoleapi.Step{{Name: "endpoint", Text: "198.18.2.5:8080, chosen"}},
			}), nil
		},
	}
	got, err := follow(t.Context(), runner, "node1", []string{"trace", "a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	if want := [][]string{{"node1", "trace", "a", "b"}, {"node2", "trace", "--packet", "AQID"}}; !reflect.DeepEqual(commands, want) {
		t.Errorf("queried %v, want %v", commands, want)
	}
	var text bytes.Buffer
	if err := printPath(&text, got, false); err != nil {
		t.Fatal(err)
	}
	want := `node1, in by eth0
  primary      node2
node2, in by bond0
  endpoint     198.18.2.5:8080, chosen, pod default/web-abc
`
	if text.String() != want {
		t.Errorf("text\n%s, want\n%s", text.String(), want)
	}
	text.Reset()
	if err := printPath(&text, got, true); err != nil {
		t.Fatal(err)
	}
	var back tracePath
	if err := json.Unmarshal(text.Bytes(), &back); err != nil || !reflect.DeepEqual(back, got) {
		t.Errorf("read back %+v, %v", back, err)
	}
}

func TestTraceEndsHalfWay(t *testing.T) {
	runner := fleet{trace: func(node string, _ []string) (consoleapi.Line, error) {
		if node == "node2" {
			return consoleapi.Line{}, errors.New("no agent")
		}
		return hopLine(consoleapi.Trace{Node: node, Verdict: consoleapi.Sent, NextNode: "node2"}), nil
	}}
	got, err := follow(t.Context(), runner, "node1", nil)
	if err == nil || !strings.HasPrefix(err.Error(), "node2: ") || len(got.Hops) != 1 {
		t.Errorf("%d hops, %v", len(got.Hops), err)
	}
	endless := fleet{trace: func(node string, _ []string) (consoleapi.Line, error) {
		return hopLine(consoleapi.Trace{Node: node, Verdict: consoleapi.Sent, NextNode: node}), nil
	}}
	if got, err := follow(t.Context(), endless, "node1", nil); err == nil || len(got.Hops) != maxHops {
		t.Errorf("%d hops, %v", len(got.Hops), err)
	}
}

func TestTraceArguments(t *testing.T) {
	got, err := traceArguments([]string{"[2001:db8::1]:1", "[2001:db8::2]:80"}, "UDP", true)
	if want := []string{"trace", "[2001:db8::1]:1", "[2001:db8::2]:80", "--proto", "udp", "--midstream"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	for _, wrong := range [][]string{
		{"198.51.100.1", "203.0.113.1:80", "tcp"}, {"198.51.100.1:1", "web:80", "tcp"},
		{"198.51.100.1:1", "[2001:db8::1]:80", "tcp"}, {"198.51.100.1:1", "203.0.113.1:80", "icmp"},
	} {
		if got, err := traceArguments(wrong[:2], wrong[2], false); err == nil {
			t.Errorf("%v gives %v", wrong, got)
		}
	}
}

func TestTraceExitCode(t *testing.T) {
	for verdict, want := range map[consoleapi.Verdict]int{
		consoleapi.Dropped: exitDropped, consoleapi.Delivered: exitOK, consoleapi.Answered: exitOK, consoleapi.NotOurs: exitOK,
	} {
		runner := fleet{trace: func(node string, args []string) (consoleapi.Line, error) {
			if node == "node1" {
				return hopLine(consoleapi.Trace{Node: node, Verdict: consoleapi.Sent, NextNode: "node2"}), nil
			}
			return hopLine(consoleapi.Trace{Node: node, Verdict: verdict, Reason: "x"}), nil
		}}
		traced, err := follow(t.Context(), runner, "node1", nil)
		if err != nil || len(traced.Hops) != 2 || exitCode(traced.end()) != want {
			t.Errorf("%s: %d hops, %v, exit code %d, want %d", verdict, len(traced.Hops), err, exitCode(traced.end()), want)
		}
	}
}

// Samples of other namespaces are filtered by the command, rates by the agents.
func TestNamespaceFilter(t *testing.T) {
	watch := dropWatch{namespace: "default"}
	other := dropLine("node1", "no_endpoint", "203.0.113.1:80")
	other.Drop.Service = "default-2/web"
	if !watch.matches(dropLine("node1", "no_endpoint", "203.0.113.1:80")) || watch.matches(other) {
		t.Error("drops: want those of namespace default alone")
	}
	top := topWatch{namespace: "other", vip: netip.MustParseAddr("203.0.113.1"), interval: time.Second}
	want := []string{"top", "--interval", "1s", "--namespace", "other", "--vip", "203.0.113.1"}
	if got := top.arguments(); !slices.Equal(got, want) {
		t.Errorf("agents are queried with %q, want %q", got, want)
	}
}

func TestConsoleFlags(t *testing.T) {
	for name, test := range map[string]struct{ args, want string }{
		"format":    {"drops -o yaml", "must be json"},
		"interval":  {"top --interval 1ms", "--interval=1ms"},
		"vip":       {"drops --vip web", "--vip"},
		"syn, ack":  {"trace 198.51.100.1:1 203.0.113.1:80 --syn --ack", "--syn and --ack exclude each other"},
		"no target": {"trace 198.51.100.1:1", "SOURCE:PORT VIP:PORT, or a URL"},
		"no agents": {"top --kubeconfig " + emptyCluster(t), "no agent runs"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			code := run(t.Context(), environment{args: append([]string{"millrace"}, strings.Fields(test.args)...), stdout: &out, stderr: &out})
			if code != exitError || !strings.Contains(out.String(), test.want) {
				t.Errorf("exit code %d, %q; want %q", code, out.String(), test.want)
			}
		})
	}
}
