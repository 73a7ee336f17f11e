// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

var relayDescription = description("relay_connected",
	"Whether EndpointSlices are watched through a relay (1) or the API server (0). Absent without --relay.")

// Relay collects the metric of an agent that uses relays.
type Relay struct {
	connected func() bool
}

// NewRelay returns a collector for the state of the connection to a relay.
func NewRelay(connected func() bool) *Relay { return &Relay{connected} }

// Describe implements prometheus.Collector.
func (*Relay) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- relayDescription }

// Collect implements prometheus.Collector.
func (r *Relay) Collect(metrics chan<- prometheus.Metric) {
	connected := 0.0
	if r.connected() {
		connected = 1
	}
	metrics <- prometheus.MustNewConstMetric(relayDescription, prometheus.GaugeValue, connected)
}
