// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-lb/millrace/lbagent/internal/canary"
)

var (
	canarySentDescription     = description("router_probes_sent_total", "Rounds of probes from a port to a canary, through a router.")
	canaryAnsweredDescription = description("router_probes_answered_total", "Answers of nodes to probes through routers, including long probes.")
)

// Canaries collects the metrics of probes through routers.
type Canaries struct {
	counters func() canary.Counters
}

// NewCanaries returns a collector for a prober.
func NewCanaries(counters func() canary.Counters) *Canaries { return &Canaries{counters} }

// Describe implements prometheus.Collector.
func (*Canaries) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- canarySentDescription
	descriptions <- canaryAnsweredDescription
}

// Collect implements prometheus.Collector.
func (c *Canaries) Collect(metrics chan<- prometheus.Metric) {
	counters := c.counters()
	metrics <- prometheus.MustNewConstMetric(canarySentDescription, prometheus.CounterValue, float64(counters.Sent))
	metrics <- prometheus.MustNewConstMetric(canaryAnsweredDescription, prometheus.CounterValue, float64(counters.Answered))
}
