// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
)

var refusedDescription = description("bgp_connections_refused_total",
	"Connections to the BGP port that were closed, by reason: unknown_source, unopened or surplus. Packets dropped there, from unknown sources or for lack of space, have the reason dropped.", "reason")

// Refused collects the metrics of refused connections of routers.
type Refused struct {
	refused func() bgp.Refused
}

// NewRefused returns a collector for the connections that a speaker closed.
func NewRefused(refused func() bgp.Refused) *Refused { return &Refused{refused} }

// Describe implements prometheus.Collector.
func (*Refused) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- refusedDescription }

// Collect implements prometheus.Collector.
func (r *Refused) Collect(metrics chan<- prometheus.Metric) {
	refused := r.refused()
	for reason, connections := range map[string]uint64{
		"unknown_source": refused.UnknownSources, "unopened": refused.Unopened, "surplus": refused.Surplus, "dropped": refused.Dropped,
	} {
		metrics <- prometheus.MustNewConstMetric(refusedDescription, prometheus.CounterValue, float64(connections), reason)
	}
}
