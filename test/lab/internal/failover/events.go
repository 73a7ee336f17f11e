// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

type event struct {
	name, title string
	lasts       time.Duration
	limit       limit
	prepare     action
	do          action
	undo        action
	// dies is true if pods of the node end with their connections.
	dies bool
	// nodePort is true if requests use a node port instead of the VIP.
	nodePort bool
	// last is true if no event can follow.
	last bool
	// isOptional is true if the event runs only if it is named.
	isOptional bool
}

// selected reports whether an event is measured; without names, all except optional ones.
func (e *event) selected(only []string) bool {
	if len(only) == 0 {
		return !e.isOptional
	}
	return slices.Contains(only, e.name)
}

var (
	noLoss  = limit{}
	halfGap = limit{gap: 500 * time.Millisecond}
)

// busyTime is how long busy CPUs must cause no session loss.
const busyTime = 10 * time.Minute

var events = []event{
	{
		name: "kill", title: "node killed hard", lasts: 8 * time.Second, dies: true, limit: halfGap,
		do: lab("node", "stop", node), undo: lab("node", "start", node),
	},
	{
		name: "router-link", title: "router2 loses its way to a node", lasts: 8 * time.Second, limit: halfGap,
		do: block, undo: unblock,
	},
	{
		name: "uplink", title: "node's uplink cut, node alive", lasts: 8 * time.Second, dies: true, limit: halfGap,
		do: lab("link", "down", node), undo: lab("link", "up", node),
	},
	{
		name: "drain", title: "cordon and drain", lasts: 40 * time.Second, limit: noLoss,
		do: evict, undo: kubectl("uncordon", node),
	},
	{
		name: "millrace-drain", title: "millrace drain", lasts: 20 * time.Second, limit: noLoss,
		do: millrace("drain", node), undo: millrace("undrain", node),
	},
	{
		name: "reboot", title: "node drained, rebooted and back", lasts: 75 * time.Second, limit: noLoss,
		do: reboot, undo: all(kubectl("uncordon", node), millrace("undrain", node)),
	},
	{
		name: "agent-restart", title: "agent killed on every node", lasts: 20 * time.Second, limit: noLoss,
		do: killAgents,
	},
	{
		name: "agent-upgrade", title: "agents rolled out again", lasts: 60 * time.Second, limit: noLoss,
		do: kubectl("-n", "millrace-system", "rollout", "restart", "daemonset/millrace-agent"),
	},
	{
		name: "operator-restart", title: "operator restarted", lasts: 20 * time.Second, limit: noLoss,
		do: kubectl("-n", "millrace-system", "rollout", "restart", "deployment/millrace-operator"),
	},
	{
		name: "api", title: "API server stopped for 60 s", lasts: 75 * time.Second, limit: noLoss,
		do: stopAPI(nil),
	},
	{
		name: "api-agents", title: "the same, agents killed meanwhile", lasts: 75 * time.Second, limit: noLoss,
		do: stopAPI(killAgents),
	},
	{
		name: "peer", title: "peers edited: hold time", lasts: 20 * time.Second, limit: noLoss,
		do:   patchPeers(`{"spec":{"holdTime":"12s","keepaliveTime":"4s"}}`),
		undo: patchPeers(`{"spec":{"holdTime":"9s","keepaliveTime":"3s"}}`),
	},
	{
		name: "communities", title: "advertisement edited: communities", lasts: 20 * time.Second, limit: noLoss,
		do:   patchAdvertisement(`{"spec":{"communities":["64513:100","64513:1:100"]}}`),
		undo: patchAdvertisement(`{"spec":{"communities":null}}`),
	},
	{
		name: "password", title: "passwords of all sessions replaced", lasts: 75 * time.Second, limit: noLoss,
		prepare: protectSessions, do: rollPasswords, undo: unprotectSessions,
	},
	{
		name: "key", title: "key of the tunnel replaced", lasts: keyTime, limit: noLoss,
		do: replaceKey("annotate", "secret", "millrace-tunnel-key", "millrace.io/rotate=now"),
	},
	{
		name: "key-lost", title: "key of the tunnel deleted", lasts: keyTime, limit: noLoss,
		do: replaceKey("delete", "secret", "millrace-tunnel-key"),
	},
	{
		name: "bgpd", title: "router2's BGP daemon killed", lasts: 20 * time.Second, limit: limit{any: true, back: 5 * time.Second},
		do: restartRouter("router2"),
	},
	{
		name: "bgpd-graceful", title: "the same, with graceful restart", lasts: 20 * time.Second, limit: noLoss,
		prepare: all(bothFamilies, graceful("router2", true)), do: restartRouter("router2"),
		undo: all(patchPeers(`{"spec":{"families":null}}`), graceful("router2", false)),
	},
	{
		name: "busy", title: "nodes' processors busy for 10 min", lasts: busyTime + 10*time.Second, limit: limit{any: true, isSilent: true}, isOptional: true,
		prepare: runRealtime, do: loadCPU(busyTime),
	},
	{
		name: "daemonset", title: "DaemonSet deleted, a node's agent ends", lasts: 30 * time.Second, limit: noLoss,
		do: removeAgent, undo: install,
	},
	{
		name: "uninstall", title: "uninstalled: requests to a node port", lasts: 60 * time.Second, limit: limit{ignoresHeld: true},
		nodePort: true, last: true, do: uninstall,
	},
}

// Names returns the names of all events.
func Names() []string {
	names := make([]string, 0, len(events))
	for i := range events {
		names = append(names, events[i].name)
	}
	return names
}

// List prints all events with their limits.
func List(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tEVENT\tLIMIT")
	for i := range events {
		e := &events[i]
		note := ""
		if e.isOptional {
			note = " (only if named)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s%s\n", e.name, e.title, e.limit, note)
	}
	return table.Flush()
}

// Check returns an error for an unknown event.
func Check(names []string) error {
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			return fmt.Errorf("--only: no event %q: choose of %s", name, strings.Join(Names(), ", "))
		}
	}
	return nil
}
