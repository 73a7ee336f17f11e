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

// number returns a panel that shows one number, which is red from bad on.
func number(title, unit, what, expr string, bad float64) Panel {
	return Panel{Title: title, What: what, Kind: "stat", Unit: unit, Queries: []Query{{expr, ""}}, Bad: bad}
}

func bars(title, unit, what string, bad float64, queries ...Query) Panel {
	return Panel{Title: title, What: what, Kind: "bargauge", Unit: unit, Queries: queries, Bad: bad}
}

func table(title, what, expr string) Panel {
	return Panel{Title: title, What: what, Kind: "table", Queries: []Query{{expr, ""}}}
}

// All returns the dashboards, sorted by name.
func All() []Dashboard { return []Dashboard{cluster(), control(), gateway(), node(), services()} }

func cluster() Dashboard {
	return Dashboard{
		Name: "millrace-cluster", Title: "Millrace / Cluster",
		Rows: []Row{
			{"Health", []Panel{
				number("Nodes not ready", "short", "Nodes whose LBNodeReport is not Ready.", `count(millrace_node_problem{condition="Ready"}) or vector(0)`, 1),
				number("BGP sessions down", "short", "Of all nodes.", `count(millrace_bgp_session_up == 0) or vector(0)`, 1),
				number("VIPs without announcer", "short", "VIPs that no node can announce.", `sum(millrace_vips_announcers{nodes="none"})`, 1),
				number("Services pending", "short", "Services without the addresses that they request.", `sum(millrace_services_pending)`, 1),
				number("Agents down", "short", "Agents that cannot be scraped.", `count(up{job="millrace-agent"} == 0) or vector(0)`, 1),
				number("Objects retained", "short", "Objects retained by the removal guard after a mass removal.", `max(millrace_removal_guard_objects)`, 1),
			}},
			{"Traffic", []Panel{
				series("Packets from clients", "pps", "Received by ingress nodes.", Query{`sum(rate(millrace_frontend_packets_total[$__rate_interval]))`, "packets"}),
				series("Bytes from clients", "Bps", "Replies are not counted, because the pods' nodes send them directly (DSR).", Query{`sum(rate(millrace_frontend_bytes_total[$__rate_interval]))`, "bytes"}),
				series("New connections", "cps", "Connections accepted by endpoints.", Query{`sum(rate(millrace_frontend_connections_total[$__rate_interval]))`, "connections"}),
			}},
			{"Drops and nodes", []Panel{
				stacked("Drops by reason", "pps", "docs/reference.md describes the reasons.", Query{`sum by (reason) (rate(millrace_drops_total[$__rate_interval])) > 0`, "{{reason}}"}),
				series("Packets by ingress node", "pps", "Routers with ECMP distribute flows evenly.", Query{`sum by (node) (rate(millrace_frontend_packets_total[$__rate_interval]))`, "{{node}}"}),
				table("Node problems", "Conditions of LBNodeReports that are not True.", `millrace_node_problem`),
			}},
			{"Addresses and versions", []Panel{
				bars("Pool usage", "percentunit", "Assigned part of the pool's addresses.", 0.9,
					Query{`1 - sum by (pool) (millrace_pool_addresses{state="Free"}) / sum by (pool) (millrace_pool_addresses)`, "{{pool}}"}),
				bars("VIPs by number of possible announcers", "short", "", 0, Query{`sum by (nodes) (millrace_vips_announcers)`, "{{nodes}}"}),
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
				series("Packet events", "pps", "docs/reference.md describes the events.", Query{`sum by (event) (` + rate("millrace_events_total", "") + `) > 0`, "{{event}}"}),
			}},
			{"Tables", []Panel{
				series("Connections", "short", "A SYN flood increases half_open.", Query{`sum by (node, kind) (` + on("millrace_connections", "") + `)`, "{{node}} {{kind}}"}),
				series("Connection table usage", "percentunit", "A full table evicts the least recently used connection.",
					Query{on("millrace_connections", `,kind="tcp"`) + ` / ignoring (kind) ` + on("millrace_connections_capacity", ""), "{{node}}"}),
				series("Map usage", "percentunit", "Services and endpoints beyond the capacity are not served.",
					Query{`max by (map) (` + on("millrace_map_entries", "") + ` / ` + on("millrace_map_capacity", "") + `)`, "{{map}}"}),
			}},
			{"Routers", []Panel{
				series("BGP sessions up", "short", "", Query{`sum by (node, peer) (` + on("millrace_bgp_session_up", "") + `)`, "{{node}} {{peer}}"}),
				series("Session losses", "short", "BGP and BFD sessions lost in the last hour.",
					Query{`increase(` + on("millrace_bgp_session_flaps_total", "") + `[1h]) > 0`, "BGP {{node}} {{peer}}"},
					Query{`increase(` + on("millrace_bfd_session_flaps_total", "") + `[1h]) > 0`, "BFD {{node}} {{peer}}"}),
				series("Routes announced", "short", "", Query{on("millrace_bgp_routes_announced", ""), "{{node}} {{peer}}"}),
			}},
			{"Uplinks and other nodes", []Panel{
				table("Modes of XDP", "Native runs in the driver; Generic is slower; without a program the node does not forward.", on("millrace_uplink_xdp_mode", "")+" == 1"),
				series("Transmit drops", "pps", "Increase the transmit ring of the NIC.", Query{rate("millrace_uplink_transmit_drops_total", ""), "{{node}} {{interface}} {{reason}}"}),
				series("Nodes that do not answer", "short", "Probed by this node.", Query{on("millrace_nodes_down", ""), "{{node}} down"}, Query{on("millrace_nodes_held", ""), "{{node}} held"}),
			}},
			{"Agent", []Panel{
				series("Pass duration (p90)", "s", "A pass reconciles the node with the API objects.",
					Query{`histogram_quantile(0.9, sum by (node, le) (` + rate("millrace_pass_duration_seconds_bucket", "") + `))`, "{{node}}"}),
				series("Failed passes", "short", "Failed passes are retried.", Query{`sum by (node) (` + rate("millrace_pass_errors_total", "") + `)`, "{{node}}"}),
				series("CPU", "short", "Usage of the agent, without the BPF programs.", Query{rate("process_cpu_seconds_total", `,job="millrace-agent"`), "{{node}}"}),
				series("Memory", "bytes", "Resident memory without BPF maps.", Query{on("process_resident_memory_bytes", `,job="millrace-agent"`), "{{node}}"}),
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
			{"Traffic", []Panel{
				series("Packets", "pps", "The top 20 Services.", Query{by("millrace_frontend_packets_total", "namespace, service"), "{{namespace}}/{{service}}"}),
				series("Bytes", "Bps", "Received from clients.", Query{by("millrace_frontend_bytes_total", "namespace, service"), "{{namespace}}/{{service}}"}),
				series("New connections", "cps", "", Query{by("millrace_frontend_connections_total", "namespace, service"), "{{namespace}}/{{service}}"}),
			}},
			{"Drops and nodes", []Panel{
				series("Drops by reason", "pps", "", Query{by("millrace_frontend_drops_total", "namespace, service, reason"), "{{namespace}}/{{service}} {{reason}}"}),
				series("Packets by ingress node", "pps", "", Query{by("millrace_frontend_packets_total", "node"), "{{node}}"}),
				series("New connections by the pod's node", "cps", "", Query{by("millrace_frontend_connections_total", "node"), "{{node}}"}),
			}},
			{"Frontends", []Panel{
				series("Packets by VIP and port", "pps", "Requires --frontend-metrics=all.", Query{by("millrace_frontend_packets_total", "vip, port, protocol"), "{{vip}} {{port}}/{{protocol}}"}),
				series("Services pending", "short", "By reason of the condition AddressAssigned.", Query{`sum by (reason) (millrace_services_pending) > 0`, "{{reason}}"}),
			}},
		},
	}
}

func control() Dashboard {
	return Dashboard{
		Name: "millrace-control", Title: "Millrace / Operator",
		Rows: []Row{
			{"Operator", []Panel{
				number("Leaders", "short", "Without a leader no Service gets an address.", `sum(leader_election_master_status{job="millrace-operator"})`, 2),
				series("Reconcile errors", "short", "Failed objects are retried.",
					Query{`sum by (controller) (rate(controller_runtime_reconcile_errors_total{job="millrace-operator"}[$__rate_interval])) > 0`, "{{controller}}"}),
				series("Work queue depth", "short", "", Query{`sum by (name) (workqueue_depth{job="millrace-operator"})`, "{{name}}"}),
			}},
			{"Reconciliation", []Panel{
				series("Reconciliations", "ops", "", Query{`sum by (controller) (rate(controller_runtime_reconcile_total{job="millrace-operator"}[$__rate_interval]))`, "{{controller}}"}),
				series("Reconcile duration (p90)", "s", "",
					Query{`histogram_quantile(0.9, sum by (controller, le) (rate(controller_runtime_reconcile_time_seconds_bucket{job="millrace-operator"}[$__rate_interval])))`, "{{controller}}"}),
				series("Requests to the API server", "reqps", "By method and status.",
					Query{`sum by (method, code) (rate(rest_client_requests_total{job="millrace-operator"}[$__rate_interval]))`, "{{method}} {{code}}"}),
			}},
			{"Addresses", []Panel{
				stacked("Assigned addresses", "short", "", Query{`sum by (pool, state) (millrace_pool_addresses{state!="Free"})`, "{{pool}} {{state}}"}),
				series("Free addresses", "short", "", Query{`sum by (pool) (millrace_pool_addresses{state="Free"})`, "{{pool}}"}),
				bars("Quota usage", "percentunit", "", 0.9,
					Query{`sum by (pool, namespace) (millrace_pool_quota_used_addresses) / sum by (pool, namespace) (millrace_pool_quota_addresses)`, "{{pool}} {{namespace}}"}),
			}},
			{"Processes", []Panel{
				series("Memory", "bytes", "Operator, gateway and aggregated API.",
					Query{`process_resident_memory_bytes{job=~"millrace-(operator|gateway|liveapi)"}`, "{{pod}}"}),
				series("CPU", "short", "", Query{`rate(process_cpu_seconds_total{job=~"millrace-(operator|gateway|liveapi)"}[$__rate_interval])`, "{{pod}}"}),
				number("Webhook certificate expires in", "s", "If warnings are enabled.",
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
				series("Request duration", "s", "From the request's header to the end of the response.",
					Query{`histogram_quantile(0.5, sum by (le) (rate(millrace_proxy_request_duration_seconds_bucket{` + chosen + `}[$__rate_interval])))`, "p50"},
					Query{`histogram_quantile(0.99, sum by (le) (rate(millrace_proxy_request_duration_seconds_bucket{` + chosen + `}[$__rate_interval])))`, "p99"}),
			}},
			{"Backends", []Panel{
				series("Backend errors", "reqps", "By backend and status or error.",
					Query{`topk(20, sum by (backend, result) (rate(millrace_proxy_backend_attempts_total{result=~"5..|error",` + chosen + `}[$__rate_interval]))) > 0`, "{{backend}} {{result}}"}),
				series("Backend requests", "reqps", "The top 20 backends.",
					Query{`topk(20, sum by (backend) (rate(millrace_proxy_backend_attempts_total{` + chosen + `}[$__rate_interval])))`, "{{backend}}"}),
				series("TLS passthrough connections", "cps", "", Query{`sum by (listener, result) (rate(millrace_proxy_tunnels_total{` + chosen + `}[$__rate_interval]))`, "{{listener}} {{result}}"}),
			}},
			{"Clients", []Panel{
				series("Requests being served", "short", "", Query{`sum by (pod) (millrace_proxy_active_requests{` + chosen + `})`, "{{pod}}"}),
				series("Connections accepted", "cps", "", Query{`sum by (pod) (rate(millrace_proxy_connections_total{` + chosen + `}[$__rate_interval]))`, "{{pod}}"}),
				series("Load shedding", "short", "Connections and requests rejected at limits.", Query{`sum by (kind) (rate(millrace_proxy_load_shed_total{` + chosen + `}[$__rate_interval])) > 0`, "{{kind}}"}),
				series("HTTP/2 errors", "short", "", Query{`sum by (type) (rate(millrace_proxy_http2_errors_total{` + chosen + `}[$__rate_interval])) > 0`, "{{type}}"}),
			}},
			{"Configuration", []Panel{
				number("Proxies with rejected resources", "short", "All other resources are served.", `sum(millrace_gateway_rejecting_proxies)`, 1),
				table("Configuration versions", "The version that each proxy serves.", `millrace_proxy_configuration_info{`+chosen+`}`),
				series("Memory", "bytes", "", Query{`process_resident_memory_bytes{job="millrace-proxy",` + chosen + `}`, "{{pod}}"}),
			}},
		},
	}
}
