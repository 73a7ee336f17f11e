// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	livev1alpha1 "github.com/millrace-lb/millrace/api/live/v1alpha1"
)

// TestLiveAPI asks kubectl for the present state, while requests go to a VIP. None of them fails,
// whatever becomes of the aggregated API and of its agents.
func TestLiveAPI(t *testing.T) {
	s := addresses(t, "echo")
	s.routed(t, 30*time.Second, 1, 2, 3)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
		defer cancel()
		if err := cluster.RemoveLive(ctx); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	must(t, cluster.InstallLive(t.Context()))
	s.routed(t, time.Minute, 1, 2, 3)
	load, err := cluster.RequestsWhile(t.Context(), s.ipv4, 50, func(context.Context) error {
		t.Run("traffic", liveTraffic)
		t.Run("flows", func(t *testing.T) { liveFlows(t, s) })
		t.Run("announcements", func(t *testing.T) { liveAnnouncements(t, s) })
		t.Run("schemas", liveSchemas)
		t.Run("tenants", liveTenants)
		return nil
	})
	must(t, err)
	if load.Requests == 0 || load.Errors != 0 {
		t.Errorf("%d of %d requests failed: %q", load.Errors, load.Requests, load.FirstErrors)
	}
	t.Run("silent agents", silentAgents)
}

// liveTraffic awaits the load that the test makes: 50 requests a second, each a new connection.
func liveTraffic(t *testing.T) {
	eventually(t, time.Minute, func(ctx context.Context) error {
		traffic := livev1alpha1.ServiceTraffic{}
		if err := cluster.Get(ctx, &traffic, "servicetraffic", "echo"); err != nil {
			return err
		}
		if rate := traffic.Rates.Connections; rate < 40 || rate > 60 || traffic.Rates.Packets < 3*rate || traffic.Rates.Bits < 8*40*traffic.Rates.Packets {
			return fmt.Errorf("the rates are %+v", traffic.Rates)
		}
		if traffic.Nodes != (livev1alpha1.NodeCount{Announcing: 3, Total: 3}) || traffic.Endpoints.Ready != traffic.Endpoints.Total || traffic.Endpoints.Total < 6 {
			return fmt.Errorf("nodes are %+v, endpoints %+v", traffic.Nodes, traffic.Endpoints)
		}
		if age := time.Since(traffic.Timestamp.Time); age > 10*time.Second {
			return fmt.Errorf("the counters are %s old", age)
		}
		return nil
	})
	if table := kubectl(t, "get", "servicetraffic", "-A"); !strings.Contains(table, " echo ") || !strings.Contains(table, "CONN/S") {
		t.Errorf("kubectl prints\n%s", table)
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
				return fmt.Errorf("a flow is %+v", flow)
			}
		}
		if len(flows.Items) == 0 {
			return errors.New("there is no flow")
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
			return fmt.Errorf("%s is announced by %+v, and withheld by %+v", s.ipv4, groups, announcement.Withheld)
		}
		sessions := livev1alpha1.BGPSessionList{}
		if err := cluster.Get(ctx, &sessions, "bgpsessions"); err != nil {
			return err
		}
		for _, session := range sessions.Items {
			if session.State != "Established" || session.Name != session.Node+"."+session.Peer {
				return fmt.Errorf("a session is %+v", session)
			}
		}
		if len(sessions.Items) != 6 {
			return fmt.Errorf("there are %d sessions, want one of each node and family", len(sessions.Items))
		}
		return nil
	})
}

func liveSchemas(t *testing.T) {
	if text := kubectl(t, "explain", "servicetraffic.rates"); !strings.Contains(text, "per second") {
		t.Errorf("kubectl explain prints\n%s", text)
	}
	if text := kubectl(t, "get", "--raw", "/apis/live.millrace.io"); !strings.Contains(text, "live.millrace.io/v1alpha1") {
		t.Errorf("discovery says %s", text)
	}
}

// liveTenants asks as a user who may view one namespace, and as nobody.
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
			t.Errorf("kubectl get %s: %v, want a refusal", strings.Join(arguments, " "), err)
		}
	}
}

// silentAgents stops the agent of one node, and then all: answers say so, and a namespace is deleted.
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
				err = fmt.Errorf("kubectl complains %q, want %q", complaints, want)
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
