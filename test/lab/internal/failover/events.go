// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-lb/millrace/test/echo/held"
	"github.com/millrace-lb/millrace/test/harness"
)

// event is something that happens to a cluster.
type event struct {
	name, title string
	// lasts is how long the load goes on from when it happens.
	lasts time.Duration
	do    func(ctx context.Context, r *run) error
	// undo makes the lab what it was.
	undo func(ctx context.Context, r *run) error
	// dies is true where pods of the node end with their connections.
	dies bool
	// last is true where nothing is left to go on with.
	last bool
}

const node = "node3"

var events = []event{
	{name: "kill", title: "node killed hard", lasts: 8 * time.Second, dies: true, do: lab("node", "stop", node), undo: startNode},
	{name: "router-link", title: "router2 loses its way to a node", lasts: 8 * time.Second, do: block, undo: unblock},
	{name: "uplink", title: "node's uplink cut, node alive", lasts: 8 * time.Second, dies: true,
		do: lab("link", "down", node), undo: lab("link", "up", node)},
	{name: "drain", title: "cordon and drain", lasts: 40 * time.Second,
		do:   kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s"),
		undo: kubectl("uncordon", node)},
	{name: "millrace-drain", title: "millrace drain", lasts: 20 * time.Second, do: millrace("drain", node), undo: millrace("undrain", node)},
	{name: "agent-restart", title: "agent killed on every node", lasts: 20 * time.Second, do: killAgents},
	{name: "agent-upgrade", title: "agents rolled out anew", lasts: 60 * time.Second, do: kubectl("-n", "millrace-system", "rollout", "restart", "daemonset/millrace-agent")},
	{name: "operator-restart", title: "operator restarted", lasts: 20 * time.Second, do: kubectl("-n", "millrace-system", "rollout", "restart", "deployment/millrace-operator")},
	{name: "peer", title: "peer edited: hold time", lasts: 20 * time.Second,
		do: patchPeer(`{"spec":{"holdTime":"12s","keepaliveTime":"4s"}}`), undo: patchPeer(`{"spec":{"holdTime":"9s","keepaliveTime":"3s"}}`)},
	{name: "bgpd", title: "router2's bgpd killed", lasts: 20 * time.Second, do: killDaemon("router2", "bgpd")},
	{name: "api", title: "API server stopped for 60 s", lasts: 75 * time.Second, do: stopAPI(nil)},
	{name: "api-agents", title: "the same, agents killed meanwhile", lasts: 75 * time.Second, do: stopAPI(killAgents)},
	{name: "uninstall", title: "DaemonSet deleted", lasts: 20 * time.Second, last: true,
		do: kubectl("-n", "millrace-system", "delete", "daemonset", "millrace-agent", "--wait=false")},
}

// Names are those of all events.
func Names() []string {
	names := make([]string, 0, len(events))
	for i := range events {
		names = append(names, events[i].name)
	}
	return names
}

// Check returns an error where there is no event of a name.
func Check(names []string) error {
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			return fmt.Errorf("--only: no event %q: choose of %s", name, strings.Join(Names(), ", "))
		}
	}
	return nil
}

type action = func(ctx context.Context, r *run) error

func lab(args ...string) action {
	return func(ctx context.Context, r *run) error { _, err := r.Run(ctx, args...); return err }
}

func kubectl(args ...string) action {
	return func(ctx context.Context, r *run) error { _, err := r.Kubectl(ctx, args...); return err }
}

func millrace(args ...string) action {
	return func(ctx context.Context, r *run) error { _, err := r.Millrace(ctx, args...); return err }
}

func patchPeer(patch string) action {
	return kubectl("patch", "lbpeers", "router1", "router2", "--type=merge", "-p", patch)
}

// startNode boots the node, which takes its time to be as it was.
func startNode(ctx context.Context, r *run) error {
	_, err := r.Run(ctx, "node", "start", node)
	return err
}

// block has router2 lose the node's packets to itself, and its own to the node: a cut link to
// one of two routers, as the bridge has no links between two hosts.
func block(ctx context.Context, r *run) error {
	address := harness.NodeAddress(victim, r.vip).String()
	_, err := r.Exec(ctx, "router2", "sh", "-c",
		"ip route add blackhole "+address+"/32")
	return err
}

func unblock(ctx context.Context, r *run) error {
	_, err := r.Exec(ctx, "router2", "ip", "route", "delete", "blackhole", harness.NodeAddress(victim, r.vip).String()+"/32")
	return err
}

// killAgents kills the agents of all nodes, without a chance to take leave.
func killAgents(ctx context.Context, r *run) error {
	for _, host := range []string{"node1", "node2", "node3"} {
		if err := signalProgram(ctx, r, host, "/lbagent", "KILL"); err != nil {
			return err
		}
	}
	return nil
}

func killDaemon(host, program string) action {
	return func(ctx context.Context, r *run) error { return signalProgram(ctx, r, host, program, "KILL") }
}

// signalProgram sends a signal to the processes of a host whose command line has a word that
// ends so.
func signalProgram(ctx context.Context, r *run, host, program, signal string) error {
	out, err := r.Exec(ctx, host, "ps", "axo", "pid=,args=")
	if err != nil {
		return err
	}
	sent := false
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) < 2 || !slices.ContainsFunc(words[1:min(3, len(words))], func(w string) bool { return strings.HasSuffix(w, program) }) {
			continue
		}
		if _, err := r.Exec(ctx, host, "kill", "-"+signal, words[0]); err != nil {
			return err
		}
		sent = true
	}
	if !sent {
		return fmt.Errorf("%s: no process %s", host, program)
	}
	return nil
}

// stopAPI stops the API server for a minute, in which something else may happen.
func stopAPI(meanwhile action) action {
	return func(ctx context.Context, r *run) (err error) {
		if err := signalProgram(ctx, r, "cp", "kube-apiserver", "STOP"); err != nil {
			return err
		}
		defer func() {
			if resumed := signalProgram(context.WithoutCancel(ctx), r, "cp", "kube-apiserver", "CONT"); err == nil {
				err = resumed
			}
		}()
		over := time.After(time.Minute)
		if meanwhile != nil {
			if err := meanwhile(ctx, r); err != nil {
				return err
			}
		}
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// attribute tells which held connections broke though their pods live.
func (r *run) attribute(ctx context.Context, got result, e event, broken []held.BrokenFlow) result {
	live, _, err := r.LivePods(ctx, "default", "app=echo")
	if err != nil {
		got.err = err
		return got
	}
	for _, flow := range broken {
		on, lives := live[flow.Pod]
		if !lives || e.dies && on == node {
			got.lost++
			continue
		}
		got.broken++
	}
	return got
}
