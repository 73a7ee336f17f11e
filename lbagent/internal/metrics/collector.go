// SPDX-License-Identifier: Apache-2.0

// Package metrics serves the agent's Prometheus metrics and its health.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Counting is the part of the data plane that is read at scrape time.
type Counting interface {
	// CountersOf counts the frontends that wanted selects, or no frontends if wanted is nil.
	CountersOf(wanted func(forwarding.FrontendKey) bool) (dataplane.Counters, error)
	Connections() (dataplane.Connections, error)
}

// Collector reads all values at scrape time, so that a counter exists as long as its map.
type Collector struct {
	counting Counting
	sessions func() []bgp.Session
	services func() map[forwarding.FrontendKey]string
	build    prometheus.Metric

	frontends Frontends
	series    *frontendSeries
	sums      sums
}

func description(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("millrace_"+name, help, labels, nil)
}

var (
	buildDescription         = description("build_info", "The version of the agent; the value is 1.", "version")
	dropsDescription         = description("drops_total", "Packets dropped by the data plane, by reason.", "reason")
	transmitDropsDescription = description("uplink_transmit_drops_total", "Frames from XDP that the driver of an interface dropped, by reason: xdp_tx or xdp_redirect.", "interface", "reason")
	eventsDescription        = description("events_total", "Packets that took an unusual path through the data plane, by event.", "event")
	connectionsDescription   = description("connections", "Connections in the node's connection table, by kind.", "kind")
	capacityDescription      = description("connections_capacity", "TCP connections that the node's connection tables can hold, of both address families together.")
	unsampledDescription     = description("drops_unsampled_total", "Dropped packets that were counted but not sampled, by cause: rate is the bound for each reason, ring_full an agent that does not read.", "cause")
	sessionDescription       = description("bgp_session_up", "Whether the session with the peer is established (1) or not (0).", "peer")
	flapsDescription         = description("bgp_session_flaps_total", "Number of times that an established session with the peer was lost.", "peer")
	sinceDescription         = description("bgp_session_change_timestamp_seconds", "When the session with the peer was last established or lost.", "peer")
	errorDescription         = description("bgp_session_last_error_timestamp_seconds", "When a session with the peer, or an attempt, last failed; absent without a failure.", "peer")
	updatesDescription       = description("bgp_updates_total", "UPDATE messages exchanged with the peer, by direction: sent or received.", "peer", "direction")
	throttledDescription     = description("bgp_session_throttled_seconds_total", "Time for which reading from the peer was suspended because it sent too much.", "peer")
	routesDescription        = description("bgp_routes_announced", "Routes that the peer receives once the session is established.", "peer")
)

// NewCollector returns a Collector for an agent of a version. services maps frontends to Services
// (namespace/name).
func NewCollector(
	version string, frontends Frontends, counting Counting,
	sessions func() []bgp.Session, services func() map[forwarding.FrontendKey]string,
) *Collector {
	labels := frontendLabels
	if frontends == EachService {
		labels = serviceLabels
	}
	return &Collector{
		frontends: frontends, series: newFrontendSeries(labels),
		counting: counting,
		sessions: sessions,
		services: services,
		build:    prometheus.MustNewConstMetric(buildDescription, prometheus.GaugeValue, 1, version),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		buildDescription, dropsDescription, transmitDropsDescription, eventsDescription,
		c.series.packets, c.series.bytes, c.series.connections, c.series.drops, unsampledDescription, connectionsDescription, capacityDescription,
		sessionDescription, flapsDescription, sinceDescription, errorDescription, updatesDescription, throttledDescription, routesDescription,
	} {
		descriptions <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	metrics <- c.build
	c.collectCounters(metrics)
	c.collectConnections(metrics)
	for _, session := range c.sessions() {
		up := 0.0
		if session.State == millracev1beta1.SessionEstablished {
			up = 1
		}
		metrics <- prometheus.MustNewConstMetric(sessionDescription, prometheus.GaugeValue, up, session.Peer)
		metrics <- prometheus.MustNewConstMetric(flapsDescription, prometheus.CounterValue, float64(session.Flaps), session.Peer)
		metrics <- prometheus.MustNewConstMetric(routesDescription, prometheus.GaugeValue, float64(session.Routes), session.Peer)
		metrics <- prometheus.MustNewConstMetric(throttledDescription, prometheus.CounterValue, session.Throttled.Seconds(), session.Peer)
		for direction, updates := range map[string]uint64{"sent": session.UpdatesSent, "received": session.UpdatesReceived} {
			metrics <- prometheus.MustNewConstMetric(updatesDescription, prometheus.CounterValue, float64(updates), session.Peer, direction)
		}
		for described, at := range map[*prometheus.Desc]time.Time{sinceDescription: session.Since, errorDescription: session.LastErrorTime} {
			if !at.IsZero() {
				metrics <- prometheus.MustNewConstMetric(described, prometheus.GaugeValue, float64(at.UnixMilli())/1000, session.Peer)
			}
		}
	}
}

func (c *Collector) collectCounters(metrics chan<- prometheus.Metric) {
	wanted := func(forwarding.FrontendKey) bool { return true }
	if c.frontends == NoFrontends {
		wanted = nil
	}
	counters, err := c.counting.CountersOf(wanted)
	if err != nil {
		metrics <- prometheus.NewInvalidMetric(dropsDescription, err)
		return
	}
	count := func(d *prometheus.Desc, value uint64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	for reason, packets := range counters.Drops {
		count(dropsDescription, packets, reason)
	}
	for _, drops := range counters.TransmitDrops {
		count(transmitDropsDescription, drops.Transmit, drops.Interface, "xdp_tx")
		count(transmitDropsDescription, drops.Redirect, drops.Interface, "xdp_redirect")
	}
	for event, packets := range counters.Events {
		count(eventsDescription, packets, event)
	}
	count(unsampledDescription, counters.SamplesSkipped, "rate")
	count(unsampledDescription, counters.SamplesLost, "ring_full")
	c.collectFrontends(metrics, counters.Frontends)
}

func (c *Collector) collectFrontends(metrics chan<- prometheus.Metric, counters map[forwarding.FrontendKey]dataplane.FrontendCounters) {
	services := c.services()
	if c.frontends == EachService {
		for service, sum := range c.sums.add(counters, services) {
			c.series.collect(metrics, sum, serviceLabelsOf(service))
		}
		return
	}
	for key, counter := range counters {
		c.series.collect(metrics, counter, labelsOf(key, services[key]))
	}
}

func (c *Collector) collectConnections(metrics chan<- prometheus.Metric) {
	connections, err := c.counting.Connections()
	if err != nil {
		metrics <- prometheus.NewInvalidMetric(connectionsDescription, err)
		return
	}
	for kind, number := range map[string]uint64{
		"tcp": connections.TCP, "udp": connections.UDP, "half_open": connections.HalfOpen,
	} {
		metrics <- prometheus.MustNewConstMetric(connectionsDescription, prometheus.GaugeValue, float64(number), kind)
	}
	metrics <- prometheus.MustNewConstMetric(capacityDescription, prometheus.GaugeValue, float64(connections.Capacity))
}
