// SPDX-License-Identifier: Apache-2.0

//go:build e2e && long

package monitors

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func of(lines ...string) (made []series) {
	for _, line := range lines {
		at := strings.LastIndex(line, "} ")
		made = append(made, series{line[:at+1], line[at+2:]})
	}
	return made
}

type alertCase struct {
	// fires contains series with which the alert fires at a time, with labels. With the series in quiet it
	// does not fire.
	at           string
	fires, quiet []series
	labels       map[string]string
}

func labelled(pairs ...string) map[string]string {
	labels := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		labels[pairs[i]] = pairs[i+1]
	}
	return labels
}

// Labels of the targets of most series.
const (
	agent    = `job="millrace-agent",node="n1"`
	operator = `job="millrace-operator",namespace="millrace-system",pod="o1"`
	proxy    = `job="millrace-proxy",namespace="shop",pod="p1"`
)

var onAgent = []string{"job", "millrace-agent", "node", "n1"}

func agentLabels(more ...string) map[string]string {
	return labelled(append(slices.Clone(onAgent), more...)...)
}

var onOperator = []string{"job", "millrace-operator", "namespace", "millrace-system", "pod", "o1"}

func operatorLabels(more ...string) map[string]string {
	return labelled(append(slices.Clone(onOperator), more...)...)
}

func problem(condition, at, quiet string) alertCase {
	name := `millrace_node_problem{condition="` + condition + `",node="n1",` + operator + `} `
	return alertCase{
		at: at, fires: of(name + "1x60"), quiet: of(name + quiet),
		labels: operatorLabels("condition", condition, "node", "n1"),
	}
}

func value(at, name, fires, quiet string, labels map[string]string) alertCase {
	return alertCase{at: at, fires: of(name + " " + fires), quiet: of(name + " " + quiet), labels: labels}
}

var alertCases = map[string]alertCase{
	"MillraceAgentsMissing": {
		at: "6m", fires: of(`up{job="other"} 1x60`), quiet: of(`up{` + agent + `} 1x60`), labels: labelled("job", "millrace-agent"),
	},
	"MillraceAgentDown":        value("6m", `up{`+agent+`}`, "0x60", "0x4 1x60", agentLabels()),
	"MillraceNodesNotReported": value("16m", `millrace_nodes{reported="false",`+operator+`}`, "2x60", "2x10 0x60", operatorLabels("reported", "false")),
	// For n1, the agent's alert reports the cause. Another alert reports that many nodes are not ready.
	"MillraceNodeNotReady": {
		at: "6m", labels: operatorLabels("condition", "Ready", "node", "n1"),
		fires: of(`millrace_node_problem{condition="Ready",node="n1",`+operator+`} 1x60`, `up{`+agent+`} 1x60`),
		quiet: of(`millrace_node_problem{condition="Ready",node="n1",`+operator+`} 1x60`, `up{`+agent+`} 0x60`,
			`millrace_node_problem{condition="Ready",node="n2",`+operator+`} 1x3 stale _x60`),
	},
	"MillraceHostIncompatible":  problem("HostCompatible", "16m", "1x10 stale _x60"),
	"MillraceNodesUnreachable":  problem("NodesReachable", "6m", "1x2 stale _x60"),
	"MillraceTunnelKeyMismatch": problem("TunnelKeyCurrent", "16m", "1x2 stale _x60"),
	"MillraceManyNodesNotReady": {
		at: "3m", fires: of(`millrace_node_problem{condition="Ready",node="n1"} 1x60`, `millrace_node_problem{condition="Ready",node="n2"} 1x60`,
			`millrace_nodes{reported="true"} 5x60`, `millrace_nodes{reported="false"} 0x60`),
		quiet: of(`millrace_node_problem{condition="Ready",node="n1"} 1x60`, `millrace_node_problem{condition="Attached",node="n2"} 1x60`,
			`millrace_nodes{reported="true"} 5x60`, `millrace_nodes{reported="false"} 0x60`),
	},
	"MillraceNodeIsolated":      value("2m", `millrace_nodes_held{`+agent+`}`, "3x60", "0x60", agentLabels()),
	"MillraceMassRemoval":       value("2m", `millrace_removal_guard_objects{`+agent+`}`, "3x60", "0x60", agentLabels()),
	"MillraceEndpointPanicMode": value("3m", `millrace_unready_endpoints_served{`+agent+`}`, "3x60", "0x60", agentLabels()),
	"MillracePassErrors":        value("20m", `millrace_pass_errors_total{`+agent+`}`, "0+1x60", "0x5 1x60", agentLabels()),
	"MillracePassStalled":       value("10m", `millrace_pass_stalls_total{`+agent+`}`, "0x5 1x60", "1x60", agentLabels()),
	"MillraceMapsRepaired":      value("10m", `millrace_map_repairs_total{`+agent+`}`, "0x5 3x60", "3x60", agentLabels()),
	"MillracePassSlow": {
		at: "30m", labels: labelled("node", "n1"),
		fires: of(`millrace_pass_duration_seconds_bucket{le="4.096",`+agent+`} 0x60`, `millrace_pass_duration_seconds_bucket{le="16.384",`+agent+`} 0+6x60`,
			`millrace_pass_duration_seconds_bucket{le="+Inf",`+agent+`} 0+6x60`),
		quiet: of(`millrace_pass_duration_seconds_bucket{le="1.024",`+agent+`} 0+6x60`, `millrace_pass_duration_seconds_bucket{le="4.096",`+agent+`} 0+6x60`,
			`millrace_pass_duration_seconds_bucket{le="+Inf",`+agent+`} 0+6x60`),
	},
	"MillraceUplinkProgramMissing": {
		at: "6m", labels: agentLabels("interface", "eth0", "mode", "None"),
		fires: of(`millrace_uplink_xdp_mode{interface="eth0",mode="None",` + agent + `} 1x60`),
		quiet: of(`millrace_uplink_xdp_mode{interface="eth0",mode="None",`+agent+`} 0x60`, `millrace_uplink_xdp_mode{interface="eth0",mode="Generic",`+agent+`} 1x60`),
	},
	"MillraceMapNearlyFull": {
		at: "11m", labels: agentLabels("map", "vips"),
		fires: of(`millrace_map_entries{map="vips",`+agent+`} 95x60`, `millrace_map_capacity{map="vips",`+agent+`} 100x60`),
		quiet: of(`millrace_map_entries{map="vips",`+agent+`} 85x60`, `millrace_map_capacity{map="vips",`+agent+`} 100x60`),
	},
	"MillraceConnectionsNearlyFull": {
		at: "11m", labels: agentLabels(),
		fires: of(`millrace_connections{kind="tcp",`+agent+`} 950x60`, `millrace_connections_capacity{`+agent+`} 1000x60`),
		quiet: of(`millrace_connections{kind="tcp",`+agent+`} 850x60`, `millrace_connections{kind="half_open",`+agent+`} 950x60`,
			`millrace_connections_capacity{`+agent+`} 1000x60`),
	},
	"MillraceFlood": value("15m", `millrace_events_total{event="over_quota",`+agent+`}`, "0+120000x60", "0+6000x60", agentLabels("event", "over_quota")),
	"MillraceInternalDrops": {
		at: "20m", labels: labelled("node", "n1", "reason", "node_route"),
		fires: of(`millrace_drops_total{reason="node_route",` + agent + `} 0+600x60`),
		quiet: of(`millrace_drops_total{reason="no_frontend",`+agent+`} 0+600x60`, `millrace_drops_total{reason="node_route",`+agent+`} 0+6x60`),
	},
	"MillraceDropsRising": {
		at: "100m", labels: labelled("reason", "no_endpoint"),
		fires: of(`millrace_drops_total{reason="no_endpoint",` + agent + `} 0+60x70 4200+6000x60`),
		quiet: of(`millrace_drops_total{reason="no_endpoint",` + agent + `} 0+6000x140`),
	},
	"MillraceTunnelSpoofing": {
		at: "15m", labels: labelled("node", "n1", "reason", "tunnel_tag"),
		fires: of(`millrace_drops_total{reason="tunnel_tag",` + agent + `} 0+600x60`),
		quiet: of(`millrace_drops_total{reason="tunnel_tag",`+agent+`} 0+1x60`, `millrace_drops_total{reason="tunnel_no_vip",`+agent+`} 0+600x60`),
	},
	// A router without any session, and a node without any session, each have another alert.
	"MillraceBGPSessionDown": {
		at: "6m", labels: labelled("peer", "tor1"),
		fires: of(`millrace_bgp_session_up{peer="tor1",node="n1"} 0x60`, `millrace_bgp_session_up{peer="tor1",node="n2"} 0x60`),
		quiet: of(`millrace_bgp_session_up{peer="tor1",node="n1"} 0x60`, `millrace_bgp_session_up{peer="tor2",node="n1"} 0x60`,
			`millrace_bgp_session_up{peer="tor1",node="n2"} 1x60`, `millrace_bgp_session_up{peer="tor2",node="n2"} 0x3 1x60`),
	},
	"MillraceBGPNodeIsolated": {
		at: "3m", labels: labelled("node", "n1"),
		fires: of(`millrace_bgp_session_up{peer="tor1",node="n1"} 0x60`, `millrace_bgp_session_up{peer="tor2",node="n1"} 0x60`,
			`millrace_bgp_session_up{peer="tor1",node="n2"} 1x60`),
		quiet: of(`millrace_bgp_session_up{peer="tor1",node="n1"} 0x60`, `millrace_bgp_session_up{peer="tor1",node="n2"} 0x60`,
			`millrace_bgp_session_up{peer="tor2",node="n2"} 1x60`),
	},
	"MillraceRouterPathsMissing": {
		at: "3m", labels: labelled("peer", "tor1", "reason", "RouteMissing"),
		fires: of(`millrace_peer_problem{peer="tor1",reason="RouteMissing",` + operator + `} 1x60`),
		quiet: of(`millrace_peer_problem{peer="tor1",reason="RouteMissing",` + operator + `} _x60`),
	},
	"MillraceBGPSessionFlapping": value("30m", `millrace_bgp_session_flaps_total{peer="tor1",`+agent+`}`, "0+1x60", "0x10 1x60", agentLabels("peer", "tor1")),
	"MillraceBGPUpdateFlood": value("15m", `millrace_bgp_session_throttled_seconds_total{peer="tor1",`+agent+`}`, "0+6x60", "0+1x60",
		agentLabels("peer", "tor1")),
	"MillraceBGPConnectionsRefused": {
		at: "20m", labels: labelled("node", "n1"),
		fires: of(`millrace_bgp_connections_refused_total{reason="unknown_source",`+agent+`} 0+60x60`, `millrace_bgp_connections_refused_total{reason="surplus",`+agent+`} 0+60x60`),
		quiet: of(`millrace_bgp_connections_refused_total{reason="unknown_source",` + agent + `} 0+30x60`),
	},
	"MillraceRelayUnavailable": {
		at: "16m", labels: labelled(),
		fires: of(`millrace_relay_connected{` + agent + `} 0x60`),
		quiet: of(`millrace_relay_connected{` + agent + `} 0x10 1x60`),
	},
	"MillraceBFDSessionDown": {
		at: "11m", labels: labelled("peer", "tor1"),
		fires: of(`millrace_bfd_session_up{peer="tor1",`+agent+`} 0x60`, `millrace_bgp_session_up{peer="tor1",`+agent+`} 1x60`),
		quiet: of(`millrace_bfd_session_up{peer="tor1",`+agent+`} 0x60`, `millrace_bgp_session_up{peer="tor1",`+agent+`} 0x60`,
			`millrace_bfd_session_up{peer="tor2",`+agent+`} 0x5 1x60`),
	},
	"MillraceBFDSessionFlapping": value("30m", `millrace_bfd_session_flaps_total{peer="tor1",`+agent+`}`, "0+1x60", "0x10 1x60", agentLabels("peer", "tor1")),
	"MillraceBFDProcessDown":     value("6m", `millrace_bfd_process_up{`+agent+`}`, "0x60", "1x60", agentLabels()),
	"MillraceVIPNotAnnounced": {
		at: "3m", labels: operatorLabels("nodes", "none"),
		fires: of(`millrace_vips_announcers{nodes="none",` + operator + `} 2x60`),
		quiet: of(`millrace_vips_announcers{nodes="none",`+operator+`} 0x60`, `millrace_vips_announcers{nodes="one",`+operator+`} 2x60`),
	},
	"MillraceVIPSingleAnnouncer": value("31m", `millrace_vips_announcers{nodes="one",`+operator+`}`, "2x60", "2x10 0x60", operatorLabels("nodes", "one")),
	"MillraceServicesPending": value("6m", `millrace_services_pending{reason="PoolExhausted",`+operator+`}`, "1x60", "1x3 0x60",
		operatorLabels("reason", "PoolExhausted")),
	"MillracePoolExhausted": value("6m", `millrace_pool_addresses{pool="public",state="Free",`+operator+`}`, "0x60", "1x60",
		operatorLabels("pool", "public", "state", "Free")),
	"MillracePoolNearlyFull": {
		at: "16m", labels: operatorLabels("pool", "public"),
		fires: of(`millrace_pool_addresses{pool="public",state="Free",`+operator+`} 5x60`, `millrace_pool_addresses{pool="public",state="Bound",`+operator+`} 95x60`),
		// The pool is exhausted, which has another alert.
		quiet: of(`millrace_pool_addresses{pool="public",state="Free",`+operator+`} 0x60`, `millrace_pool_addresses{pool="public",state="Bound",`+operator+`} 95x60`,
			`millrace_pool_addresses{pool="other",state="Free",`+operator+`} 50x60`, `millrace_pool_addresses{pool="other",state="Bound",`+operator+`} 95x60`),
	},
	"MillraceQuotaExhausted": {
		at: "16m", labels: labelled("job", "millrace-operator", "pod", "o1", "pool", "public", "namespace", "shop"),
		fires: of(`millrace_pool_quota_used_addresses{pool="public",namespace="shop",job="millrace-operator",pod="o1"} 3x60`,
			`millrace_pool_quota_addresses{pool="public",namespace="shop",job="millrace-operator",pod="o1"} 3x60`),
		quiet: of(`millrace_pool_quota_used_addresses{pool="public",namespace="shop",job="millrace-operator",pod="o1"} 2x60`,
			`millrace_pool_quota_addresses{pool="public",namespace="shop",job="millrace-operator",pod="o1"} 3x60`),
	},
	"MillraceOperatorDown": {
		at:    "6m",
		fires: of(`up{job="millrace-operator",pod="o1"} 0x60`), quiet: of(`up{job="millrace-operator",pod="o1"} 0x60`, `up{job="millrace-operator",pod="o2"} 1x60`),
	},
	"MillraceOperatorWithoutLeader": {
		at:    "3m",
		fires: of(`leader_election_master_status{name="l",job="millrace-operator",pod="o1"} 0x60`, `leader_election_master_status{name="l",job="millrace-gateway",pod="g1"} 1x60`),
		quiet: of(`leader_election_master_status{name="l",job="millrace-operator",pod="o1"} 0x60`, `leader_election_master_status{name="l",job="millrace-operator",pod="o2"} 1x60`),
	},
	"MillraceOperatorErrors":             value("30m", `controller_runtime_reconcile_errors_total{controller="service",`+operator+`}`, "0+60x60", "0+1x60", labelled("controller", "service")),
	"MillraceOperatorStuck":              value("10m", `workqueue_longest_running_processor_seconds{name="service",`+operator+`}`, "0+60x60", "1x60", operatorLabels("name", "service")),
	"MillraceWebhookCertificateExpiring": value("62m", `millrace_webhook_certificate_expiry_timestamp_seconds{`+operator+`}`, "864000x70", "2592000x70", operatorLabels()),
	"MillraceWebhookNotTrusted":          value("11m", `millrace_webhook_certificate_trusted{`+operator+`}`, "0x60", "1x60", operatorLabels()),
	"MillraceGatewayDown": {
		at: "6m", fires: of(`up{job="millrace-gateway",pod="g1"} 0x60`, `up{job="millrace-gateway",pod="g2"} 0x60`),
		quiet: of(`up{job="millrace-gateway",pod="g1"} 0x60`, `up{job="millrace-gateway",pod="g2"} 1x60`),
	},
	"MillraceProxyConfigurationRejected": value("6m", `millrace_gateway_rejecting_proxies{owner="gateway/shop/web"}`, "1x60", "0x60", labelled("owner", "gateway/shop/web")),
	"MillraceGatewayObjectConflict":      value("6m", `millrace_gateway_conflicting_objects{kind="HTTPRoute",pod="g1"}`, "2x60", "0x60", labelled("kind", "HTTPRoute")),
	"MillraceProxyDown":                  value("6m", `up{`+proxy+`}`, "0x60", "1x60", labelled("job", "millrace-proxy", "namespace", "shop", "pod", "p1")),
	"MillraceProxyErrors": {
		at: "20m", labels: labelled("listener", "l"),
		fires: of(`millrace_proxy_requests_total{listener="l",code="502",`+proxy+`} 0+60x60`, `millrace_proxy_requests_total{listener="l",code="200",`+proxy+`} 0+600x60`),
		quiet: of(`millrace_proxy_requests_total{listener="l",code="404",`+proxy+`} 0+600x60`, `millrace_proxy_requests_total{listener="l",code="502",`+proxy+`} 0+1x60`,
			// A single error among few requests does not fire the alert.
			`millrace_proxy_requests_total{listener="m",code="error",`+proxy+`} 0+1x60`),
	},
	"MillraceProxyOverloaded": value("20m", `millrace_proxy_load_shed_total{kind="request",`+proxy+`}`, "0+1x60", "0x60",
		labelled("namespace", "shop", "pod", "p1", "kind", "request")),
	"MillraceLiveAPIDown": {
		at: "6m", fires: of(`up{job="millrace-liveapi",pod="a1"} 0x60`), quiet: of(`up{job="millrace-liveapi",pod="a1"} 0x60`, `up{job="millrace-liveapi",pod="a2"} 1x60`),
	},
}

// healthy contains the series of a cluster without alerts.
var healthy = of(
	`up{`+agent+`} 1x120`, `up{`+operator+`} 1x120`, `up{job="millrace-gateway",pod="g1"} 1x120`, `up{job="millrace-liveapi",pod="a1"} 1x120`, `up{`+proxy+`} 1x120`,
	`millrace_nodes{reported="true",`+operator+`} 3x120`, `millrace_nodes{reported="false",`+operator+`} 0x120`,
	`millrace_nodes_held{`+agent+`} 0x120`, `millrace_nodes_down{`+agent+`} 0x120`, `millrace_removal_guard_objects{`+agent+`} 0x120`,
	`millrace_unready_endpoints_served{`+agent+`} 0x120`, `millrace_pass_errors_total{`+agent+`} 3x120`, `millrace_map_repairs_total{`+agent+`} 3x120`,
	`millrace_uplink_xdp_mode{interface="eth0",mode="Native",`+agent+`} 1x120`, `millrace_uplink_xdp_mode{interface="eth0",mode="None",`+agent+`} 0x120`,
	`millrace_map_entries{map="vips",`+agent+`} 10x120`, `millrace_map_capacity{map="vips",`+agent+`} 100x120`,
	`millrace_connections{kind="tcp",`+agent+`} 10x120`, `millrace_connections_capacity{`+agent+`} 100x120`,
	`millrace_events_total{event="over_quota",`+agent+`} 0x120`, `millrace_drops_total{reason="no_frontend",`+agent+`} 0+60x120`,
	`millrace_bgp_session_up{peer="tor1",`+agent+`} 1x120`, `millrace_bgp_session_flaps_total{peer="tor1",`+agent+`} 2x120`,
	`millrace_bfd_session_up{peer="tor1",`+agent+`} 1x120`, `millrace_bfd_process_up{`+agent+`} 1x120`,
	`millrace_vips_announcers{nodes="none",`+operator+`} 0x120`, `millrace_vips_announcers{nodes="several",`+operator+`} 9x120`,
	`millrace_services_pending{reason="PoolExhausted",`+operator+`} 0x120`,
	`millrace_pool_addresses{pool="public",state="Free",`+operator+`} 50x120`, `millrace_pool_addresses{pool="public",state="Bound",`+operator+`} 9x120`,
	`leader_election_master_status{name="l",`+operator+`} 1x120`, `millrace_webhook_certificate_trusted{`+operator+`} 1x120`,
	`millrace_webhook_certificate_expiry_timestamp_seconds{`+operator+`} 9000000x120`,
	`millrace_proxy_requests_total{listener="l",code="200",`+proxy+`} 0+600x120`, `millrace_proxy_load_shed_total{kind="idle_connection",`+proxy+`} 0+1x120`,
)

// TestAlertsFire checks that each alert fires exactly if it should, with labels that identify the object.
func TestAlertsFire(t *testing.T) {
	all, rules := alerts(t)
	query := request{Rules: rules}
	names := slices.Sorted(maps.Keys(alertCases))
	for _, name := range names {
		each := alertCases[name]
		query.Cases = append(query.Cases, evaluated{each.fires, "1m", each.at}, evaluated{each.quiet, "1m", each.at})
	}
	query.Cases = append(query.Cases, evaluated{healthy, "1m", "2h"})
	results := evaluate(t, query).Cases
	for i, result := range results {
		if result.Error != "" {
			t.Fatalf("case %d, of %s: %s", i, names[min(i/2, len(names)-1)], result.Error)
		}
	}
	for i, name := range names {
		fired := slices.DeleteFunc(results[2*i].Alerts, func(f firing) bool { return f.Name != name })
		if len(fired) != 1 {
			t.Errorf("%s fires %d times, want once: %v", name, len(fired), fired)
			continue
		}
		got := fired[0].Labels
		delete(got, "alertname")
		delete(got, "severity")
		if !maps.Equal(got, alertCases[name].labels) {
			t.Errorf("%s fires with the labels %v, want %v", name, got, alertCases[name].labels)
		}
		if summary := fired[0].Annotations["summary"]; strings.Contains(summary, "no value") || strings.Contains(summary, "error") || strings.Contains(summary, "  ") {
			t.Errorf("%s has %q", name, summary)
		}
		if slices.ContainsFunc(results[2*i+1].Alerts, func(f firing) bool { return f.Name == name }) {
			t.Errorf("%s fires where it should not: %v", name, results[2*i+1].Alerts)
		}
	}
	for _, fired := range results[len(results)-1].Alerts {
		t.Errorf("%s fires in a cluster that is well", fired.Name)
	}
	for _, alert := range all {
		if _, tested := alertCases[alert.Alert]; !tested {
			t.Errorf("%s is tested by no case", alert.Alert)
		}
	}
	if len(all) != len(alertCases) {
		t.Errorf("there are %d alerts and %d cases", len(all), len(alertCases))
	}
}
