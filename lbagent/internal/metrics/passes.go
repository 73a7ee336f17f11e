// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
	"github.com/millrace-lb/millrace/lbagent/internal/retention"
)

// Passes collects metrics of the agent's passes, with results of the last one. It is safe for concurrent
// use.
type Passes struct {
	duration prometheus.Histogram
	errors   prometheus.Counter
	success  prometheus.Gauge
	repairs  prometheus.Counter
	stalls   prometheus.Counter
	last     atomic.Pointer[Pass]
}

// Pass is the result of a pass.
type Pass struct {
	// Usage is the number of entries in the maps, nil if unknown; Limits are their capacities.
	Usage   *forwarding.Usage
	Limits  forwarding.Limits
	Uplinks []millracev1beta1.InterfaceStatus
	// Held is the number of objects that count as present after many were removed at once.
	Held int
	// Unready is the number of endpoints that are served although not ready, because most became unready
	// at once.
	Unready  int
	Retained retention.Counts
}

// NewPasses returns Passes without a pass.
func NewPasses() *Passes {
	return &Passes{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "millrace_pass_duration_seconds", Help: "Duration of reconciliation passes.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_pass_errors_total", Help: "Passes that failed at least in part and are retried.",
		}),
		success: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "millrace_pass_last_success_timestamp_seconds", Help: "Time of the last pass without an error; 0 before.",
		}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_map_repairs_total", Help: "Map entries that differed from what the agent had written and were repaired.",
		}),
		stalls: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "millrace_pass_stalls_total", Help: "Passes that made no progress for two minutes: the agent's health check fails until they do, and the log contains the stacks.",
		}),
	}
}

// Observe records a finished pass.
func (p *Passes) Observe(began, ended time.Time, err error, found Pass) {
	p.duration.Observe(ended.Sub(began).Seconds())
	if err != nil {
		p.errors.Inc()
	} else {
		p.success.Set(float64(ended.UnixNano()) / float64(time.Second))
	}
	p.last.Store(&found)
}

// Repaired counts entries that differed from the written ones.
func (p *Passes) Repaired(entries int) { p.repairs.Add(float64(entries)) }

// Stalled counts a pass that makes no progress.
func (p *Passes) Stalled() { p.stalls.Inc() }

var (
	entriesDescription  = description("map_entries", "Entries of a map that are in use, as of the last pass.", "map")
	unreadyDescription  = description("unready_endpoints_served", "Endpoints that are served although they are not ready: most endpoints of most Services turned unready at once.")
	retainedDescription = description("retained_endpoints", "Endpoints that left their EndpointSlices without terminating and keep their established connections.")
	evictedDescription  = description("retained_endpoints_evicted_total", "Endpoints that --max-retained-endpoints evicted: their connections were reset.")
	heldDescription     = description("removal_guard_objects", "Objects retained temporarily because they were removed in bulk.")
	mapLimitDescription = description("map_capacity", "Capacity of a map in entries.", "map")
	xdpDescription      = description("uplink_xdp_mode", "1 for the mode in which the XDP program runs on an uplink: Native, Generic, or None.", "interface", "mode")
)

// Describe implements prometheus.Collector.
func (p *Passes) Describe(descriptions chan<- *prometheus.Desc) {
	p.duration.Describe(descriptions)
	p.errors.Describe(descriptions)
	p.success.Describe(descriptions)
	p.repairs.Describe(descriptions)
	p.stalls.Describe(descriptions)
	for _, d := range []*prometheus.Desc{
		heldDescription, unreadyDescription, retainedDescription, evictedDescription, entriesDescription, mapLimitDescription, xdpDescription,
	} {
		descriptions <- d
	}
}

// Collect implements prometheus.Collector.
func (p *Passes) Collect(metrics chan<- prometheus.Metric) {
	p.duration.Collect(metrics)
	p.errors.Collect(metrics)
	p.success.Collect(metrics)
	p.repairs.Collect(metrics)
	p.stalls.Collect(metrics)
	last := p.last.Load()
	if last == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, uplink := range last.Uplinks {
		for _, mode := range []millracev1beta1.XDPMode{millracev1beta1.XDPNative, millracev1beta1.XDPGeneric, millracev1beta1.XDPNone} {
			value := 0.0
			if uplink.XDPMode == mode {
				value = 1
			}
			gauge(xdpDescription, value, uplink.Name, string(mode))
		}
	}
	gauge(heldDescription, float64(last.Held))
	gauge(unreadyDescription, float64(last.Unready))
	gauge(retainedDescription, float64(last.Retained.Retained))
	metrics <- prometheus.MustNewConstMetric(evictedDescription, prometheus.CounterValue, float64(last.Retained.Evicted))
	for _, fill := range mapUsages(last) {
		gauge(entriesDescription, float64(fill.entries), fill.name)
		gauge(mapLimitDescription, float64(fill.capacity), fill.name)
	}
}

type mapUsage struct {
	name              string
	entries, capacity int
}

// mapUsages returns the usage of the maps from the agent's state, without reading a map. The connection
// tables, which only the kernel writes, have separate metrics.
func mapUsages(pass *Pass) []mapUsage {
	has := pass.Usage
	if has == nil {
		return nil
	}
	return []mapUsage{
		{"frontends", has.Frontends, pass.Limits.Frontends},
		{"node_tables", has.NodeTables, pass.Limits.NodeTables},
		{"endpoint_tables", has.EndpointTables, pass.Limits.EndpointTables},
		{"endpoints", has.Endpoints, pass.Limits.Endpoints},
		{"vips", has.VIPs, pass.Limits.VIPs},
		{"source_ranges_ipv4", has.SourceRangesIPv4, pass.Limits.SourceRanges},
		{"source_ranges_ipv6", has.SourceRangesIPv6, pass.Limits.SourceRanges},
		{"nodes", has.Nodes, forwarding.MaxNodeID},
	}
}
