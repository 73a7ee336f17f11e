// SPDX-License-Identifier: Apache-2.0

package dashboards

func series(title, unit, what string, queries ...Query) Panel {
	return Panel{Title: title, What: what, Kind: "timeseries", Unit: unit, Queries: queries}
}

func stacked(title, unit, what string, queries ...Query) Panel {
	panel := series(title, unit, what, queries...)
	panel.Stacked = true
	return panel
}

// number returns a panel of a number, red from bad on.
func number(title, unit, what, expr string, bad float64) Panel {
	return Panel{Title: title, What: what, Kind: "stat", Unit: unit, Queries: []Query{{expr, ""}}, Bad: bad}
}

func bars(title, unit, what string, bad float64, queries ...Query) Panel {
	return Panel{Title: title, What: what, Kind: "bargauge", Unit: unit, Queries: queries, Bad: bad}
}

func table(title, what, expr string) Panel {
	return Panel{Title: title, What: what, Kind: "table", Queries: []Query{{expr, ""}}}
}

// All returns the dashboards, by name.
func All() []Dashboard { return []Dashboard{cluster(), control(), gateway(), node(), services()} }

func cluster() Dashboard {
	return Dashboard{
		Name: "millrace-cluster", Title: "Millrace / Cluster",
		Rows: []Row{
			{"Is it well?", []Panel{
				number("Nodes not ready", "short", "Nodes whose LBNodeReport is not Ready.", `count(millrace_node_problem{condition="Ready"}) or vector(0)`, 1),
				number("BGP sessions down", "short", "Of all nodes.", `count(millrace_bgp_session_up == 0) or vector(0)`, 1),
				number("VIPs without a node", "short", "VIPs that no node can announce.", `sum(millrace_vips_announcers{nodes="none"})`, 1),
				number("Services waiting", "short", "Services without the addresses that they ask for.", `sum(millrace_services_waiting)`, 1),
				number("Agents down", "short", "Agents that do not answer.", `count(up{job="millrace-agent"} == 0) or vector(0)`, 1),
				number("Removed objects held", "short", "Objects retained because they were removed in bulk.", `max(millrace_removal_guard_objects)`, 1),
			}},
			{"Traffic", []Panel{
				series("Packets from clients", "pps", "As they reach the ingress nodes.", Query{`sum(rate(millrace_frontend_packets_total[$__rate_interval]))`, "packets"}),
				series("Bytes from clients", "Bps", "Replies leave the nodes of the pods straight, and are not counted.", Query{`sum(rate(millrace_frontend_bytes_total[$__rate_interval]))`, "bytes"}),
				series("New connections", "cps", "As endpoints accept them.", Query{`sum(rate(millrace_frontend_connections_total[$__rate_interval]))`, "connections"}),
			}},
			{"Drops and nodes", []Panel{
				stacked("Drops by reason", "pps", "docs/reference.md says what each reason means.", Query{`sum by (reason) (rate(millrace_drops_total[$__rate_interval])) > 0`, "{{reason}}"}),
				series("Packets by ingress node", "pps", "Routers spread flows evenly where they have ECMP.", Query{`sum by (node) (rate(millrace_frontend_packets_total[$__rate_interval]))`, "{{node}}"}),
				table("Problems of nodes", "Conditions that are not True.", `millrace_node_problem`),
			}},
			{"Addresses and versions", []Panel{
				bars("Pools in use", "percentunit", "Of all addresses of the pool.", 0.9,
					Query{`1 - sum by (pool) (millrace_pool_addresses{state="Free"}) / sum by (pool) (millrace_pool_addresses)`, "{{pool}}"}),
				bars("VIPs by nodes that can announce them", "short", "", 0, Query{`sum by (nodes) (millrace_vips_announcers)`, "{{nodes}}"}),
				bars("Agents by version", "short", "", 0, Query{`count by (version) (millrace_build_info)`, "{{version}}"}),
			}},
		},
	}
}

func node() Dashboard {
	on := func(metric, more string) string { return metric + `{node=~"$node"` + more + `}` }
	rate := func(metric, more string) string { return `rate(` + on(metric, more) + `[$__rate_interval])` }
	return Dashboard{
		Name: "millrace-node", Title: "Millrace / Node",
		Variables: []Variable{{"node", "millrace_build_info", "node"}},
		Rows: []Row{
			{"Packets", []Panel{
				series("From clients", "pps", "", Query{`sum by (node) (` + rate("millrace_frontend_packets_total", "") + `)`, "{{node}}"}),
				stacked("Drops by reason", "pps", "", Query{`sum by (reason) (` + rate("millrace_drops_total", "") + `) > 0`, "{{reason}}"}),
				series("Unusual ways", "pps", "Events: docs/reference.md says what each means.", Query{`sum by (event) (` + rate("millrace_events_total", "") + `) > 0`, "{{event}}"}),
			}},
			{"Tables", []Panel{
				series("Connections", "short", "half_open counts the entries that a SYN flood creates.", Query{`sum by (node, kind) (` + on("millrace_connections", "") + `)`, "{{node}} {{kind}}"}),
				series("Table of connections in use", "percentunit", "When it is full, the longest unused one makes room.",
					Query{on("millrace_connections", `,kind="tcp"`) + ` / ignoring (kind) ` + on("millrace_connections_capacity", ""), "{{node}}"}),
				series("Maps in use", "percentunit", "Beyond their capacity Services or endpoints are not served.",
					Query{`max by (map) (` + on("millrace_map_entries", "") + ` / ` + on("millrace_map_capacity", "") + `)`, "{{map}}"}),
			}},
			{"Routers", []Panel{
				series("BGP sessions up", "short", "", Query{`sum by (node, peer) (` + on("millrace_bgp_session_up", "") + `)`, "{{node}} {{peer}}"}),
				series("Sessions lost", "short", "In an hour, of BGP and BFD.",
					Query{`increase(` + on("millrace_bgp_session_flaps_total", "") + `[1h]) > 0`, "BGP {{node}} {{peer}}"},
					Query{`increase(` + on("millrace_bfd_session_flaps_total", "") + `[1h]) > 0`, "BFD {{node}} {{peer}}"}),
				series("Routes announced", "short", "", Query{on("millrace_bgp_routes_announced", ""), "{{node}} {{peer}}"}),
			}},
			{"Uplinks and other nodes", []Panel{
				table("Modes of XDP", "Native runs in the driver; Generic is slower; without a program the node does not forward.", on("millrace_uplink_xdp_mode", "")+" == 1"),
				series("Transmit drops", "pps", "Increase the transmit ring of the NIC.", Query{rate("millrace_uplink_transmit_drops_total", ""), "{{node}} {{interface}} {{reason}}"}),
				series("Nodes that do not answer", "short", "Probed by this node.", Query{on("millrace_nodes_down", ""), "{{node}} down"}, Query{on("millrace_nodes_held", ""), "{{node}} held"}),
			}},
			{"The agent", []Panel{
				series("Passes, 90 of 100 within", "s", "A pass reconciles the node with the API objects.",
					Query{`histogram_quantile(0.9, sum by (node, le) (` + rate("millrace_pass_duration_seconds_bucket", "") + `))`, "{{node}}"}),
				series("Passes that failed", "short", "They are tried again.", Query{`sum by (node) (` + rate("millrace_pass_errors_total", "") + `)`, "{{node}}"}),
				series("Processors", "short", "Usage of the agent, without the programs in the kernel.", Query{rate("process_cpu_seconds_total", `,job="millrace-agent"`), "{{node}}"}),
				series("Memory", "bytes", "Without maps.", Query{on("process_resident_memory_bytes", `,job="millrace-agent"`), "{{node}}"}),
			}},
		},
	}
}

func services() Dashboard {
	const chosen = `{namespace=~"$namespace",service=~"$service"}`
	by := func(metric, labels string) string {
		return `topk(20, sum by (` + labels + `) (rate(` + metric + chosen + `[$__rate_interval])))`
	}
	return Dashboard{
		Name: "millrace-services", Title: "Millrace / Services",
		Variables: []Variable{
			{"namespace", "millrace_frontend_packets_total", "namespace"}, {"service", "millrace_frontend_packets_total", "service"},
		},
		Rows: []Row{
			{"Traffic of Services", []Panel{
				series("Packets", "pps", "The twenty largest.", Query{by("millrace_frontend_packets_total", "namespace, service"), "{{namespace}}/{{service}}"}),
				series("Bytes", "Bps", "From clients alone.", Query{by("millrace_frontend_bytes_total", "namespace, service"), "{{namespace}}/{{service}}"}),
				series("New connections", "cps", "", Query{by("millrace_frontend_connections_total", "namespace, service"), "{{namespace}}/{{service}}"}),
			}},
			{"Drops, and where", []Panel{
				series("Drops by reason", "pps", "", Query{by("millrace_frontend_drops_total", "namespace, service, reason"), "{{namespace}}/{{service}} {{reason}}"}),
				series("Packets by ingress node", "pps", "", Query{by("millrace_frontend_packets_total", "node"), "{{node}}"}),
				series("New connections by the node of the pod", "cps", "", Query{by("millrace_frontend_connections_total", "node"), "{{node}}"}),
			}},
			{"Frontends", []Panel{
				series("Packets by VIP and port", "pps", "With --frontend-metrics=all alone.", Query{by("millrace_frontend_packets_total", "vip, port, protocol"), "{{vip}} {{port}}/{{protocol}}"}),
				series("Services waiting", "short", "By reason.", Query{`sum by (reason) (millrace_services_waiting) > 0`, "{{reason}}"}),
			}},
		},
	}
}

func control() Dashboard {
	return Dashboard{
		Name: "millrace-control", Title: "Millrace / Operator",
		Rows: []Row{
			{"Operator", []Panel{
				number("Leaders", "short", "One leads. 0: no Service gets an address.", `sum(leader_election_master_status{job="millrace-operator"})`, 2),
				series("Errors", "short", "What failed is tried again.",
					Query{`sum by (controller) (rate(controller_runtime_reconcile_errors_total{job="millrace-operator"}[$__rate_interval])) > 0`, "{{controller}}"}),
				series("Objects in line", "short", "", Query{`sum by (name) (workqueue_depth{job="millrace-operator"})`, "{{name}}"}),
			}},
			{"Writes", []Panel{
				series("Reconciled", "ops", "", Query{`sum by (controller) (rate(controller_runtime_reconcile_total{job="millrace-operator"}[$__rate_interval]))`, "{{controller}}"}),
				series("90 of 100 within", "s", "",
					Query{`histogram_quantile(0.9, sum by (controller, le) (rate(controller_runtime_reconcile_time_seconds_bucket{job="millrace-operator"}[$__rate_interval])))`, "{{controller}}"}),
				series("Requests to the API server", "reqps", "By method and status.",
					Query{`sum by (method, code) (rate(rest_client_requests_total{job="millrace-operator"}[$__rate_interval]))`, "{{method}} {{code}}"}),
			}},
			{"Addresses", []Panel{
				stacked("Addresses of pools", "short", "", Query{`sum by (pool, state) (millrace_pool_addresses{state!="Free"})`, "{{pool}} {{state}}"}),
				series("Free addresses", "short", "", Query{`sum by (pool) (millrace_pool_addresses{state="Free"})`, "{{pool}}"}),
				bars("Quotas in use", "percentunit", "", 0.9,
					Query{`sum by (pool, namespace) (millrace_pool_quota_used_addresses) / sum by (pool, namespace) (millrace_pool_quota_addresses)`, "{{pool}} {{namespace}}"}),
			}},
			{"Processes", []Panel{
				series("Memory", "bytes", "Of operator, gateway and aggregated API.",
					Query{`process_resident_memory_bytes{job=~"millrace-(operator|gateway|liveapi)"}`, "{{pod}}"}),
				series("Processors", "short", "", Query{`rate(process_cpu_seconds_total{job=~"millrace-(operator|gateway|liveapi)"}[$__rate_interval])`, "{{pod}}"}),
				number("Certificate of the webhook ends in", "s", "Where warnings are switched on.",
					`min(millrace_webhook_certificate_expiry_timestamp_seconds) - time()`, 0),
			}},
		},
	}
}

func gateway() Dashboard {
	const chosen = `namespace=~"$namespace",pod=~"$pod"`
	return Dashboard{
		Name: "millrace-gateway", Title: "Millrace / Gateway",
		Variables: []Variable{
			{"namespace", "millrace_proxy_configuration_info", "namespace"}, {"pod", "millrace_proxy_configuration_info", "pod"},
		},
		Rows: []Row{
			{"Requests", []Panel{
				stacked("By status", "reqps", "", Query{`sum by (code) (rate(millrace_proxy_requests_total{` + chosen + `}[$__rate_interval]))`, "{{code}}"}),
				series("By listener", "reqps", "", Query{`sum by (listener) (rate(millrace_proxy_requests_total{` + chosen + `}[$__rate_interval]))`, "{{listener}}"}),
				series("Time to the end of the answer", "s", "Half, and 99 of 100, within.",
					Query{`histogram_quantile(0.5, sum by (le) (rate(millrace_proxy_request_duration_seconds_bucket{` + chosen + `}[$__rate_interval])))`, "half"},
					Query{`histogram_quantile(0.99, sum by (le) (rate(millrace_proxy_request_duration_seconds_bucket{` + chosen + `}[$__rate_interval])))`, "99 of 100"}),
			}},
			{"Backends", []Panel{
				series("Answers that are errors", "reqps", "By backend, and status or error.",
					Query{`topk(20, sum by (backend, result) (rate(millrace_proxy_backend_attempts_total{result=~"5..|error",` + chosen + `}[$__rate_interval]))) > 0`, "{{backend}} {{result}}"}),
				series("Requests", "reqps", "The twenty largest.",
					Query{`topk(20, sum by (backend) (rate(millrace_proxy_backend_attempts_total{` + chosen + `}[$__rate_interval])))`, "{{backend}}"}),
				series("TLS passed on", "cps", "", Query{`sum by (listener, result) (rate(millrace_proxy_tunnels_total{` + chosen + `}[$__rate_interval]))`, "{{listener}} {{result}}"}),
			}},
			{"Clients", []Panel{
				series("Requests being served", "short", "", Query{`sum by (pod) (millrace_proxy_active_requests{` + chosen + `})`, "{{pod}}"}),
				series("Connections accepted", "cps", "", Query{`sum by (pod) (rate(millrace_proxy_connections_total{` + chosen + `}[$__rate_interval]))`, "{{pod}}"}),
				series("Refused for want of room", "short", "", Query{`sum by (what) (rate(millrace_proxy_shed_total{` + chosen + `}[$__rate_interval])) > 0`, "{{what}}"}),
				series("Abuse of HTTP/2", "short", "", Query{`sum by (type) (rate(millrace_proxy_http2_errors_total{` + chosen + `}[$__rate_interval])) > 0`, "{{type}}"}),
			}},
			{"Configuration", []Panel{
				number("Proxies that refuse it", "short", "They serve all but a part of it.", `sum(millrace_gateway_refusing_proxies)`, 1),
				table("Versions", "What each proxy serves.", `millrace_proxy_configuration_info{`+chosen+`}`),
				series("Memory", "bytes", "", Query{`process_resident_memory_bytes{job="millrace-proxy",` + chosen + `}`, "{{pod}}"}),
			}},
		},
	}
}
