// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	consoleapi "github.com/millrace-lb/millrace/api/console"
	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
)

// TestLiveAPI queries the aggregated API during requests to a VIP, which all succeed.
func TestLiveAPI(t *testing.T) {
	s := addresses(t, "echo")
	s.routed(t, 30*time.Second, 1, 2, 3)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
		defer cancel()
		if err := cluster.RemoveLive(ctx, "--ignore-not-found"); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	before := installedObjects(t)
	must(t, cluster.InstallLive(t.Context()))
	s.routed(t, time.Minute, 1, 2, 3)
	load, err := cluster.RequestsWhile(t.Context(), s.ipv4, 50, func(context.Context) error {
		t.Run("traffic", liveTraffic)
		t.Run("flows", func(t *testing.T) { liveFlows(t, s) })
		t.Run("announcements", func(t *testing.T) { liveAnnouncements(t, s) })
		t.Run("schemas", liveSchemas)
		t.Run("tenants", liveTenants)
		t.Run("commands", func(t *testing.T) { liveCommands(t, s) })
		t.Run("relay", liveRelay)
		return nil
	})
	must(t, err)
	if load.Requests == 0 || load.Errors != 0 {
		t.Errorf("%d of %d requests failed: %q", load.Errors, load.Requests, load.FirstErrors)
	}
	if everyStep {
		t.Run("silent agents", silentAgents)
		t.Run("uninstall", func(t *testing.T) { uninstallLive(t, before) })
	}
}

// liveRelay waits until all agents use a relay for EndpointSlices. They try again after up to two minutes.
func liveRelay(t *testing.T) {
	eventually(t, 4*time.Minute, func(context.Context) error {
		logs := kubectl(t, "-n", "millrace-system", "logs", "-l", "app.kubernetes.io/component=agent", "-c", "lbagent", "--tail=-1")
		if streams := strings.Count(logs, "Watching EndpointSlices through a relay"); streams < 3 {
			return fmt.Errorf("%d agents use a relay", streams)
		}
		return nil
	})
}

// liveTraffic waits for the rates of 50 new connections per second.
func liveTraffic(t *testing.T) {
	eventually(t, time.Minute, func(ctx context.Context) error {
		traffic := livev1alpha1.ServiceTraffic{}
		if err := cluster.Get(ctx, &traffic, "servicetraffic", "echo"); err != nil {
			return err
		}
		if rate := traffic.Rates.Connections; rate < 40 || rate > 60 || traffic.Rates.Packets < 3*rate || traffic.Rates.Bits < 8*40*traffic.Rates.Packets {
			return fmt.Errorf("rates = %+v", traffic.Rates)
		}
		if traffic.Nodes != (livev1alpha1.NodeCount{Announcing: 3, Total: 3}) || traffic.Endpoints.Ready != traffic.Endpoints.Total || traffic.Endpoints.Total < 6 {
			return fmt.Errorf("nodes = %+v, endpoints = %+v", traffic.Nodes, traffic.Endpoints)
		}
		if age := time.Since(traffic.Timestamp.Time); age > 10*time.Second {
			return fmt.Errorf("the counters are %s old", age)
		}
		return nil
	})
	if table := kubectl(t, "get", "servicetraffic", "-A"); !strings.Contains(table, " echo ") || !strings.Contains(table, "CONN/S") {
		t.Errorf("kubectl output\n%s", table)
	}
}

func liveFlows(t *testing.T, s service) {
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		flows := livev1alpha1.FlowList{}
		if err := cluster.Get(ctx, &flows, "flows", "--field-selector=service=echo,client="+client(s.ipv4).String()); err != nil {
			return err
		}
		for _, flow := range flows.Items {
			if !strings.HasPrefix(flow.Client, client(s.ipv4).String()+":") || flow.VIP != s.ipv4.String()+":80" || flow.Endpoint == "" {
				return fmt.Errorf("flow = %+v", flow)
			}
		}
		if len(flows.Items) == 0 {
			return errors.New("no flows")
		}
		return nil
	})
	kubectl(t, "get", "drops", "--field-selector=service=echo")
}

func liveAnnouncements(t *testing.T, s service) {
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		announcement := livev1alpha1.VIPAnnouncement{}
		if err := cluster.Get(ctx, &announcement, "vipannouncements", s.ipv4.String()); err != nil {
			return err
		}
		if groups := announcement.Announced; len(groups) != 1 || !slices.Equal(groups[0].Nodes, []string{"node1", "node2", "node3"}) {
			return fmt.Errorf("%s is announced by %+v, withheld by %+v", s.ipv4, groups, announcement.Withheld)
		}
		sessions := livev1alpha1.BGPSessionList{}
		if err := cluster.Get(ctx, &sessions, "bgpsessions"); err != nil {
			return err
		}
		for _, session := range sessions.Items {
			if session.State != "Established" || session.Name != session.Node+"."+session.Peer {
				return fmt.Errorf("session = %+v", session)
			}
		}
		if len(sessions.Items) != 6 {
			return fmt.Errorf("%d sessions, want one per node and family", len(sessions.Items))
		}
		return nil
	})
}

func liveSchemas(t *testing.T) {
	if text := kubectl(t, "explain", "servicetraffic.rates"); !strings.Contains(text, "per second") {
		t.Errorf("kubectl explain output\n%s", text)
	}
	if text := kubectl(t, "get", "--raw", "/apis/live.millrace.io"); !strings.Contains(text, "live.millrace.io/v1alpha1") {
		t.Errorf("discovery returned %s", text)
	}
}

// liveTenants queries as a user with access to one namespace and as an anonymous user.
func liveTenants(t *testing.T) {
	cleanup(t, "delete", "rolebinding", "tenant", "--ignore-not-found")
	kubectl(t, "create", "rolebinding", "tenant", "--clusterrole=view", "--user=tenant")
	eventually(t, 30*time.Second, func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, "get", "servicetraffic", "--as=tenant")
		return err
	})
	kubectl(t, "get", "flows", "--field-selector=service=echo", "--as=tenant")
	for _, arguments := range [][]string{
		{"servicetraffic", "-A", "--as=tenant"}, {"servicetraffic", "-n", "kube-system", "--as=tenant"},
		{"vipannouncements", "--as=tenant"}, {"bgpsessions", "--as=tenant"}, {"servicetraffic", "--as=nobody"},
	} {
		if _, err := cluster.Kubectl(t.Context(), append([]string{"get"}, arguments...)...); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("kubectl get %s: %v, want forbidden", strings.Join(arguments, " "), err)
		}
	}
}

// silentAgents stops one agent and then all: responses report it, and a namespace can be deleted.
func silentAgents(t *testing.T) {
	signal := func(ctx context.Context, name string, nodes ...string) error {
		var all error
		for _, node := range nodes {
			_, err := cluster.Exec(ctx, node, "pkill", "-"+name, "-x", "lbagent")
			all = errors.Join(all, err)
		}
		return all
	}
	nodes := []string{"node1", "node2", "node3"}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		_ = signal(ctx, "CONT", nodes...)
		if err := cluster.RolledOut(ctx, "millrace-system", "daemonset/millrace-agent"); err != nil {
			t.Error(err)
		}
	})
	partial := func(want string) {
		t.Helper()
		eventually(t, time.Minute, func(ctx context.Context) error {
			_, complaints, err := cluster.WarnedGet(ctx, "servicetraffic")
			if err == nil && !strings.Contains(complaints, "Warning: "+want) {
				err = fmt.Errorf("warnings of kubectl = %q, want %q", complaints, want)
			}
			return err
		})
	}
	must(t, signal(t.Context(), "STOP", "node3"))
	partial("1 of 3 nodes did not answer: node3")
	must(t, signal(t.Context(), "STOP", "node1", "node2"))
	partial("3 of 3 nodes did not answer: node1, node2, node3")
	kubectl(t, "create", "namespace", "forgotten")
	kubectl(t, "delete", "namespace", "forgotten", "--timeout=60s")
	kubectl(t, "wait", "apiservice/v1alpha1.live.millrace.io", "--for=condition=Available", "--timeout=1s")
}

// liveCommands runs millrace with access to the aggregated API only and with access to agents only; both
// have the same output. A tenant sees the rates of a namespace.
func liveCommands(t *testing.T, s service) {
	const reader, account = "reader", "asker"
	cleanup(t, "delete", "clusterrolebinding,clusterrole", reader, account, "--ignore-not-found")
	cleanup(t, "-n", "millrace-system", "delete", "rolebinding", reader, account, "--ignore-not-found")
	kubectl(t, "create", "clusterrole", account, "--verb=get,list,watch", "--resource="+strings.Join([]string{
		"vippools.millrace.io", "vips.millrace.io", "lbpeers.millrace.io", "vipadvertisements.millrace.io", "viproutes.millrace.io",
		"lbnodes.millrace.io", "lbnodereports.millrace.io", "services", "endpointslices.discovery.k8s.io",
	}, ","))
	kubectl(t, "create", "clusterrolebinding", account, "--clusterrole="+account, "--user="+account)
	kubectl(t, "create", "clusterrolebinding", reader, "--clusterrole=millrace-viewer", "--user="+reader)
	kubectl(t, "-n", "millrace-system", "create", "rolebinding", account, "--role=millrace-tracer", "--user="+account)
	kubectl(t, "-n", "millrace-system", "create", "rolebinding", reader, "--role=millrace-viewer", "--user="+reader)
	for _, line := range []string{
		"vips", "vips -o wide", "vips -o json", "vips -n default", "vips default/echo", "vips -o yaml " + s.ipv6.String(), "status -o json",
		"bgp peers", "bgp peers -o wide", "bgp peers -o json", "bgp peers --node node2",
	} {
		eventually(t, time.Minute, func(ctx context.Context) error {
			live, complaints, err := cluster.MillraceAs(ctx, reader, strings.Fields(line)...)
			if err != nil || complaints != "" {
				return fmt.Errorf("millrace %s through the aggregated API: %w: %s", line, err, complaints)
			}
			output, complaints, err := cluster.MillraceAs(ctx, account, strings.Fields(line)...)
			if err != nil || complaints != "" {
				return fmt.Errorf("millrace %s through the agents: %w: %s", line, err, complaints)
			}
			if difference := cmp.Diff(output, live); difference != "" {
				return fmt.Errorf("millrace %s (-agents +aggregated API):\n%s", line, difference)
			}
			if !strings.Contains(live, "router") {
				return fmt.Errorf("output of millrace %s contains no peer:\n%s", line, live)
			}
			return nil
		})
	}
	topByBoth(t, s, account)
}

// frontends is the output of `millrace top`.
type frontends struct {
	Nodes     int
	Window    float64 `json:"windowSeconds"`
	Frontends []struct {
		consoleapi.FrontendName
		Connections float64 `json:"connectionsPerSecond"`
	}
}

// topByBoth compares a tenant's rates with those of agents at 50 new connections per second.
func topByBoth(t *testing.T, s service, account string) {
	cleanup(t, "delete", "rolebinding", "top", "--ignore-not-found")
	kubectl(t, "create", "rolebinding", "top", "--clusterrole=view", "--user=tenant")
	top := func(ctx context.Context, user string) (shown frontends, err error) {
		out, complaints, err := cluster.MillraceAs(ctx, user, "top", "--once", "-n", "default", "-o", "json")
		if err != nil {
			return shown, fmt.Errorf("millrace top as %s: %w: %s", user, err, complaints)
		}
		// Users without access to the aggregated API get a notice.
		if warned := strings.Contains(complaints, "querying the agents instead"); warned != (user == account) {
			return shown, fmt.Errorf("millrace top as %s: unexpected warnings %s", user, complaints)
		}
		return shown, json.Unmarshal([]byte(out), &shown)
	}
	names := func(of frontends) (names []string) {
		for _, frontend := range of.Frontends {
			names = append(names, fmt.Sprint(frontend.FrontendName))
		}
		slices.Sort(names)
		return names
	}
	eventually(t, time.Minute, func(ctx context.Context) error {
		live, err := top(ctx, "tenant")
		if err != nil {
			return err
		}
		fromAgents, err := top(ctx, account)
		if err != nil {
			return err
		}
		if difference := cmp.Diff(names(fromAgents), names(live)); difference != "" || live.Nodes != 3 || fromAgents.Nodes != 3 || live.Window < 9 || fromAgents.Window > 5 {
			return fmt.Errorf("%d nodes over %g s; through the agents %d over %g s; frontends (-agents +aggregated API):\n%s",
				live.Nodes, live.Window, fromAgents.Nodes, fromAgents.Window, difference)
		}
		for _, shown := range []frontends{live, fromAgents} {
			if busiest := shown.Frontends[0]; busiest.VIP != s.ipv4 || busiest.Connections < 35 || busiest.Connections > 65 {
				return fmt.Errorf("over %g s the busiest frontend = %+v", shown.Window, busiest)
			}
		}
		return nil
	})
}

func installedObjects(t *testing.T) []string {
	t.Helper()
	listed, err := listInstalled(t.Context())
	must(t, err)
	return listed
}

func listInstalled(ctx context.Context) ([]string, error) {
	out, err := cluster.Kubectl(ctx, "get", "apiservices,clusterroles,clusterrolebindings,roles,rolebindings,deployments,daemonsets,"+
		"services,endpointslices,poddisruptionbudgets,networkpolicies,serviceaccounts,secrets,configmaps", "-A", "--no-headers",
		"-o", "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name")
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	slices.Sort(lines)
	return lines, err
}

// uninstallLive runs the commands of docs/live.md: all objects are removed, and namespaces can be deleted.
func uninstallLive(t *testing.T, before []string) {
	must(t, cluster.RemoveLive(t.Context()))
	eventually(t, time.Minute, func(ctx context.Context) error {
		after, err := listInstalled(ctx)
		if difference := cmp.Diff(before, after); err == nil && difference != "" {
			err = fmt.Errorf("objects (-before the installation +after the removal):\n%s", difference)
		}
		return err
	})
	kubectl(t, "create", "namespace", "forgotten")
	kubectl(t, "delete", "namespace", "forgotten", "--timeout=60s")
	if _, err := cluster.Kubectl(t.Context(), "get", "--raw", "/apis/live.millrace.io/v1alpha1"); err == nil || !strings.Contains(err.Error(), "NotFound") {
		t.Errorf("query of the removed API: %v, want NotFound", err)
	}
}
