// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/harness"
)

// conditions records changes of the condition of LBPeers with canaries.
type conditions struct {
	mu    sync.Mutex
	lines []string
	rest  []byte
}

// watch repeats `kubectl get --watch`, which ends at the first of several objects.
func (c *conditions) watch(ctx context.Context) {
	const columns = `{range .items[*]}{.metadata.name} {range .status.conditions[?(@.type=="` +
		millracev1beta1.ConditionPathsVerified + `")]}{.status} {.reason} {.message}{end}{"\n"}{end}`
	for ctx.Err() == nil {
		_ = cluster.Stream(ctx, c, "kubectl", "get", "lbpeers", "-o", "jsonpath="+columns)
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (c *conditions) Write(printed []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rest = append(c.rest, printed...)
	for {
		line, rest, whole := bytes.Cut(c.rest, []byte("\n"))
		if !whole {
			return len(printed), nil
		}
		c.lines, c.rest = append(c.lines, time.Now().UTC().Format(time.TimeOnly)+" "+string(line)), rest
	}
}

// alarms returns the alarms of an LBPeer after line since, and the number of lines.
func (c *conditions) alarms(since int, peer string) (alarms []string, lines int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, line := range c.lines[since:] {
		if strings.Contains(line, peer+" "+string(metav1.ConditionFalse)) {
			alarms = append(alarms, line)
		}
	}
	return alarms, len(c.lines)
}

// canaryMinutes is the duration of MILLRACE_CANARY, such as 60m.
func canaryMinutes(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("MILLRACE_CANARY")
	if text == "" {
		return 5 * time.Minute
	}
	limit, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("read MILLRACE_CANARY: %v", err)
	}
	return limit
}

// No LBPeer reports unreached nodes while agents are killed and restarted, pods change and the router
// resets sessions. Graceful restart retains routes, and after a reset they return within the tolerance.
func TestCanaryReportsNoFalseAlarm(t *testing.T) {
	limit := canaryMinutes(t)
	for _, c := range canaries {
		cleanup(t, "patch", "lbpeer", c.peer, "--type=merge", "--patch", `{"spec":{"canaries":null}}`)
		kubectl(t, "patch", "lbpeer", c.peer, "--type=merge", "--patch", `{"spec":{"canaries":["`+c.address+`"]}}`)
	}
	cleanup(t, "scale", "deployment/echo", "--replicas=6")
	t.Cleanup(func() { logCanaries(t) })
	reachedThroughRouter(t, time.Minute, metav1.ConditionTrue, millracev1beta1.ReasonPathsVerified, "")

	reported := &conditions{}
	watching, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		reported.watch(watching)
	}()
	defer func() {
		stop()
		<-done
	}()
	random, began := rand.New(rand.NewPCG(1, 2)), time.Now()
	seen := 0
	for round := 0; time.Since(began) < limit; round++ {
		what := disturb(t, random, round)
		reachedThroughRouter(t, 3*time.Minute, metav1.ConditionTrue, millracev1beta1.ReasonPathsVerified, "")
		for _, c := range canaries {
			alarms, _ := reported.alarms(seen, c.peer)
			if len(alarms) > 0 {
				t.Errorf("%s after the start, %s: alarms %q", time.Since(began).Round(time.Second), what, alarms)
			}
		}
		_, seen = reported.alarms(seen, "")
		t.Logf("%s after the start: %s", time.Since(began).Round(time.Second), what)
	}

	// The same watch detects a real fault.
	allVerified(t)
	t.Cleanup(func() { filterThird(t, false) })
	filterThird(t, true)
	for _, c := range canaries {
		eventually(t, 20*time.Second, func(context.Context) error {
			if alarms, _ := reported.alarms(seen, c.peer); len(alarms) == 0 {
				return fmt.Errorf("the fault of LBPeer %s was not detected", c.peer)
			}
			return nil
		})
	}
}

// clearSession makes router1 reset its sessions with a neighbor, or with all (*), and waits for them and
// their routes. The reset may follow the command's end.
func clearSession(t *testing.T, neighbor string) {
	t.Helper()
	before, err := establishments(t.Context())
	must(t, err)
	_, err = cluster.Run(t.Context(), "vtysh", "router1", "--", "-c", "clear bgp "+neighbor)
	must(t, err)
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		now, err := establishments(ctx)
		if err != nil {
			return err
		}
		for address, times := range before {
			if (neighbor == "*" || neighbor == address) && now[address] <= times {
				return fmt.Errorf("the session with %s was established %d times, no more than before it was cleared", address, times)
			}
		}
		return nil
	})
	for _, c := range canaries {
		eventually(t, 30*time.Second, func(ctx context.Context) error {
			return cluster.RoutedTo(ctx, "router1", netip.MustParseAddr(c.address), 1, 2, 3)
		})
	}
}

// establishments returns how often router1's session with each neighbor was established.
func establishments(ctx context.Context) (map[string]int, error) {
	raw, err := cluster.Run(ctx, "vtysh", "router1", "--", "-c", "show bgp neighbors json")
	if err != nil {
		return nil, err
	}
	var neighbors map[string]json.RawMessage
	if err := json.Unmarshal(raw, &neighbors); err != nil {
		return nil, fmt.Errorf("parse the neighbors of router1: %w: %s", err, raw)
	}
	times := map[string]int{}
	for address, text := range neighbors {
		var neighbor struct {
			Times *int `json:"connectionsEstablished"`
		}
		// Other keys, such as vrfId, are not neighbors.
		if json.Unmarshal(text, &neighbor) == nil && neighbor.Times != nil {
			times[address] = *neighbor.Times
		}
	}
	if len(times) == 0 {
		return nil, fmt.Errorf("router1 has no neighbors: %s", raw)
	}
	return times, nil
}

// disturb causes an event that is not a router's fault, waits for its end and returns its description.
func disturb(t *testing.T, random *rand.Rand, round int) string {
	t.Helper()
	node := 1 + random.IntN(3)
	switch round % 7 {
	case 0:
		name := fmt.Sprintf("node%d", node)
		killAgents(t, name)
		return "the agent of " + name + " was killed"
	case 1:
		replicas := random.IntN(6)
		scale(t, replicas)
		return fmt.Sprintf("%d pods served", replicas)
	case 2:
		kubectl(t, "-n", "millrace-system", "rollout", "restart", "daemonset/millrace-agent")
		must(t, cluster.RolledOut(t.Context(), "millrace-system", "daemonset/millrace-agent"))
		return "all agents were restarted"
	case 3:
		killAgents(t, nodeNames...)
		return "all agents were killed"
	case 4:
		scale(t, 6)
		return "6 pods served"
	case 5:
		clearSession(t, "*")
		return "the router reset all sessions"
	}
	clearSession(t, harness.NodeAddress(node, netip.MustParseAddr(canaries[0].address)).String())
	return fmt.Sprintf("the router reset the IPv4 session of node%d", node)
}
