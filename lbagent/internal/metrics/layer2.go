// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-lb/millrace/lbagent/internal/l2"
)

var (
	l2VIPsDescription     = description("l2_vips", "VIPs for which the node answers ARP and Neighbor Discovery on an interface.", "interface")
	l2RequestsDescription = description("l2_requests_total",
		"Requests of ARP and Neighbor Discovery for these VIPs, by result: answered; limited per host; dropped because the receive buffer was full; malformed.",
		"interface", "result")
	l2AnnouncementsDescription = description("l2_announcements_total", "Unsolicited ARP and Neighbor Discovery announcements of VIPs.", "interface")
	l2SendErrorsDescription    = description("l2_send_errors_total", "ARP and Neighbor Discovery replies and announcements that could not be built or sent.", "interface")
)

// Layer2 collects the metrics of answers on links, for each interface with layer 2 announcements.
type Layer2 struct {
	counts func() map[string]l2.Counts
}

// NewLayer2 returns a collector for counts by interface name.
func NewLayer2(counts func() map[string]l2.Counts) *Layer2 { return &Layer2{counts} }

// Describe implements prometheus.Collector.
func (*Layer2) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{l2VIPsDescription, l2RequestsDescription, l2AnnouncementsDescription, l2SendErrorsDescription} {
		descriptions <- d
	}
}

// Collect implements prometheus.Collector.
func (l *Layer2) Collect(metrics chan<- prometheus.Metric) {
	for name, counts := range l.counts() {
		metrics <- prometheus.MustNewConstMetric(l2VIPsDescription, prometheus.GaugeValue, float64(counts.VIPs), name)
		count := func(d *prometheus.Desc, value uint64, labels ...string) {
			metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), append([]string{name}, labels...)...)
		}
		count(l2RequestsDescription, counts.Answered, "answered")
		count(l2RequestsDescription, counts.Limited, "limited")
		count(l2RequestsDescription, counts.Dropped, "dropped")
		count(l2RequestsDescription, counts.Malformed, "malformed")
		count(l2AnnouncementsDescription, counts.Announced)
		count(l2SendErrorsDescription, counts.Failed)
	}
}
