// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/test/harness"
)

// The VIPs are in the network of nodes and router and not announced by BGP. The election selects the same
// of the nodes 1 to 3 for both.
const l2Objects = `
apiVersion: millrace.io/v1beta1
kind: VIPPool
metadata: {name: l2}
spec:
  addresses: [%[1]s-%[1]s, "%[2]s-%[2]s"]
  autoAssign: false
---
apiVersion: millrace.io/v1beta1
kind: VIPAdvertisement
metadata: {name: l2}
spec: {pools: [l2], l2: {}}
---
apiVersion: v1
kind: Service
metadata: {name: hold-l2, namespace: default, annotations: {millrace.io/pool: l2}}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {app: hold}
  ports: [{name: http, port: 80, targetPort: 8080}]
`

const (
	l2IPv4 = "198.51.100.117"
	l2IPv6 = "2001:db8:0:1::117"
	// l2Gap bounds the outage after the leader's death.
	l2Gap = time.Second
)

// l2Service creates VIPs for L2 and returns the node that answers for them.
func l2Service(t *testing.T) (s service, leader string) {
	t.Helper()
	podsLeft(t, 0)
	cleanup(t, "delete", "vippool/l2", "vipadvertisement/l2", "--ignore-not-found")
	cleanup(t, "delete", "deployment/hold", "service/hold-l2", "service/hold", "--ignore-not-found")
	must(t, cluster.Apply(t.Context(), harness.Held))
	must(t, cluster.Apply(t.Context(), fmt.Sprintf(l2Objects, l2IPv4, l2IPv6)))
	s = addresses(t, "hold-l2")
	leader = s.leader(t, "")
	t.Logf("%s answers for %s and %s", leader, s.ipv4, s.ipv6)
	eventually(t, 20*time.Second, func(ctx context.Context) error {
		names, err := cluster.Kubectl(ctx, "get", "vip", l2IPv4, millracev1beta1.VIPName(s.ipv6), "-o", "jsonpath={.items[*].status.l2Node}")
		if err == nil && string(names) != leader+" "+leader {
			err = fmt.Errorf("kubectl get vip shows %q, want %s for both", names, leader)
		}
		return err
	})
	return s, leader
}

// held opens connections to pods on other nodes than the leader, because they would end with it.
func (s service) held(t *testing.T, leader string) *harness.Hold {
	t.Helper()
	kubectl(t, "patch", "deployment", "hold", "--type=strategic", "-p", fmt.Sprintf(`{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":
		{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":
		[{"key":"kubernetes.io/hostname","operator":"NotIn","values":[%q]}]}]}}}}}}}`, leader))
	must(t, cluster.RolledOut(t.Context(), "default", "deployment/hold"))
	podsLeft(t, 6)
	hold, _, err := cluster.Hold(t.Context(), harness.HoldOptions{
		VIPs: []netip.Addr{s.ipv4, s.ipv6}, Flows: heldConnections, Interval: time.Second, Timeout: flowTimeout,
	})
	must(t, err)
	t.Cleanup(func() { _ = hold.End() })
	return hold
}

// The node answers a router's unicast probes. If its agent hangs, another node answers. Connections and
// requests survive the node's death.
func TestL2(t *testing.T) {
	s, leader := l2Service(t)
	s.probed(t)
	if everyStep {
		s.outlivesHungAgent(t, leader)
	}
	hold := s.held(t, leader)
	t.Cleanup(func() { _, _ = cluster.Run(context.Background(), "node", "start", leader) })
	type outcome struct {
		load harness.Load
		err  error
	}
	loaded := make(chan outcome, 1)
	go func() {
		// The short timeout makes the gap visible.
		load, err := cluster.RequestsForWithTimeout(t.Context(), s.ipv4, 200, 15*time.Second, 500*time.Millisecond)
		loaded <- outcome{load, err}
	}()
	time.Sleep(3 * time.Second)
	_, err := cluster.Run(t.Context(), "node", "stop", leader)
	must(t, err)
	after := s.left(t, leader)
	result := <-loaded
	t.Logf("%s was killed: nodes %s answer, requests failed for %.0f ms (%d of %d)", leader, after, result.load.Gap, result.load.Errors, result.load.Requests)
	if gap := time.Duration(result.load.Gap * float64(time.Millisecond)); gap > l2Gap || result.load.Requests < 2000 {
		t.Errorf("requests failed for %s, want at most %s: %+v, %v", gap, l2Gap, result.load, result.err)
	}
	unbroken(t, hold, "the death of "+leader)
	_, err = cluster.Run(t.Context(), "node", "start", leader)
	must(t, err)
	s.leader(t, leader)
	must(t, cluster.RolledOut(t.Context(), "millrace-system", "daemonset/millrace-agent"))
	unbroken(t, hold, "the start of "+leader)
}

func unbroken(t *testing.T, hold *harness.Hold, what string) {
	t.Helper()
	report, err := hold.Check()
	must(t, err)
	if len(report.Broken) > 0 || report.Live != heldConnections {
		t.Errorf("%s: %d connections open, %d broken: %q", what, report.Live, len(report.Broken), report.FirstErrors)
	}
}

// leader waits until one node answers for both addresses, the wanted one unless it is empty.
func (s service) leader(t *testing.T, wanted string) (node string) {
	t.Helper()
	eventually(t, 90*time.Second, func(ctx context.Context) error {
		nodes, err := s.answering(ctx)
		if err != nil {
			return err
		}
		if node = nodes[0]; nodes[1] != node || wanted != "" && node != wanted {
			return fmt.Errorf("nodes %s answer, want one: %s", nodes, wanted)
		}
		return nil
	})
	return node
}

// left waits until other nodes than the previous one answer.
func (s service) left(t *testing.T, previous string) (nodes []string) {
	t.Helper()
	eventually(t, 60*time.Second, func(ctx context.Context) (err error) {
		if nodes, err = s.answering(ctx); err == nil && slices.Contains(nodes, previous) {
			err = fmt.Errorf("%s still answers: %s", previous, nodes)
		}
		return err
	})
	return nodes
}

// probed triggers probes of the router's neighbours (RFC 4861, section 7.3.3).
func (s service) probed(t *testing.T) {
	t.Helper()
	for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
		known, err := cluster.Exec(t.Context(), "router1", "ip", "neigh", "show", "to", vip.String())
		must(t, err)
		fields := strings.Fields(string(known))
		if len(fields) < 5 {
			t.Fatalf("no neighbor entry for %s on the router: %q", vip, known)
		}
		_, err = cluster.Exec(t.Context(), "router1", append(append([]string{"ip", "neigh", "change"}, fields[:5]...), "nud", "probe")...)
		must(t, err)
		eventually(t, 10*time.Second, func(ctx context.Context) error {
			known, err := cluster.Exec(ctx, "router1", "ip", "neigh", "show", "to", vip.String())
			if err == nil && !strings.Contains(string(known), "REACHABLE") {
				err = fmt.Errorf("%s did not answer the unicast request of the router: %q", vip, known)
			}
			return err
		})
	}
}

const (
	// l2Hung bounds the outage after an agent hangs: 4 s and a pass. l2Back bounds the time with two nodes
	// answering after it continues: a second and a pass. Both have a margin for busy machines.
	l2Hung = 8 * time.Second
	l2Back = 4 * time.Second
)

// outlivesHungAgent stops the agent of the node that answers; its data plane continues.
func (s service) outlivesHungAgent(t *testing.T, leader string) {
	t.Helper()
	listeners, err := cluster.Exec(t.Context(), leader, "ss", "-Hltnp")
	must(t, err)
	agent := regexp.MustCompile(`"lbagent",pid=(\d+),`).FindStringSubmatch(string(listeners))
	if agent == nil {
		t.Fatalf("%s: no agent in\n%s", leader, listeners)
	}
	signal := func(ctx context.Context, name string) error {
		_, err := cluster.Exec(ctx, leader, "kill", "-"+name, agent[1])
		return err
	}
	t.Cleanup(func() { _ = signal(context.Background(), "CONT") })
	claim := func(what string, limit time.Duration, holds func(nodes []string) bool) {
		t.Helper()
		began := time.Now()
		var nodes []string
		eventually(t, time.Minute, func(ctx context.Context) (err error) {
			if nodes, err = s.claiming(ctx); err == nil && !holds(nodes) {
				err = fmt.Errorf("%s: nodes %s answer", what, nodes)
			}
			return err
		})
		after := time.Since(began)
		t.Logf("%s: after %s nodes %s answer", what, after, nodes)
		if after > limit {
			t.Errorf("%s: nodes %s answer only after %s, want at most %s", what, nodes, after, limit)
		}
	}
	must(t, signal(t.Context(), "STOP"))
	claim("the agent of "+leader+" hangs", l2Hung, func(nodes []string) bool { return len(nodes) == 2 })
	s.left(t, leader)
	must(t, signal(t.Context(), "CONT"))
	claim("it goes on", l2Back, func(nodes []string) bool { return slices.Equal(nodes, []string{leader}) })
	s.leader(t, leader)
}

// claiming returns the nodes in the IPv6 address's multicast group, which regard themselves as the leader.
func (s service) claiming(ctx context.Context) (nodes []string, err error) {
	for _, node := range []string{"node1", "node2", "node3"} {
		groups, err := cluster.Exec(ctx, node, "ip", "-6", "maddress")
		if err != nil {
			return nil, err
		}
		if strings.Contains(string(groups), "ff02::1:ff00:117\n") || strings.Contains(string(groups), "ff02::1:ff00:117 ") {
			nodes = append(nodes, node)
		}
	}
	return nodes, nil
}

// answering returns the nodes in the router's neighbour table for the addresses.
func (s service) answering(ctx context.Context) (nodes []string, err error) {
	for _, vip := range []netip.Addr{s.ipv4, s.ipv6} {
		if _, err := cluster.Requests(ctx, vip, 1); err != nil {
			return nil, err
		}
		raw, err := cluster.Exec(ctx, "router1", "ip", "neigh", "show", "to", vip.String())
		if err != nil {
			return nil, err
		}
		fields := strings.Fields(string(raw))
		at := slices.Index(fields, "lladdr")
		if at < 0 || at+1 >= len(fields) {
			return nil, fmt.Errorf("no neighbor entry for %s on the router: %q", vip, raw)
		}
		node, err := nodeOf(ctx, fields[at+1])
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

func nodeOf(ctx context.Context, mac string) (string, error) {
	for _, node := range []string{"node1", "node2", "node3"} {
		// A stopped node has no links.
		links, _ := cluster.Exec(ctx, node, "ip", "-o", "link")
		if strings.Contains(string(links), mac) {
			return node, nil
		}
	}
	return "", fmt.Errorf("no node has MAC address %s", mac)
}
