// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-lb/millrace/lbagent/internal/membership"
	"github.com/millrace-lb/millrace/lbagent/internal/probe"
)

var (
	watchDownDescription      = description("nodes_down", "Other nodes that do not answer probes and get no packets.")
	watchHeldDescription      = description("nodes_held", "Other nodes that do not answer and count as up: half of those that were up were lost at once.")
	watchSentDescription      = description("probes_sent_total", "Probes to other nodes.")
	watchAnsweredDescription  = description("probes_answered_total", "Probes that were answered.")
	watchDiscardedDescription = description("probes_discarded_total", "Datagrams to the probe port that match no probe.")
)

type watched interface {
	Verdict() membership.Verdict
	Counters() probe.Counters
}

// Watch collects the metrics of the monitoring of other nodes.
type Watch struct {
	watched watched
}

// NewWatch returns a collector for w.
func NewWatch(w watched) *Watch { return &Watch{w} }

// Describe implements prometheus.Collector.
func (*Watch) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		watchDownDescription, watchHeldDescription, watchSentDescription, watchAnsweredDescription, watchDiscardedDescription,
	} {
		descriptions <- d
	}
}

// Collect implements prometheus.Collector.
func (w *Watch) Collect(metrics chan<- prometheus.Metric) {
	verdict, counters := w.watched.Verdict(), w.watched.Counters()
	for d, value := range map[*prometheus.Desc]int{watchDownDescription: len(verdict.Down), watchHeldDescription: len(verdict.Held)} {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value))
	}
	for d, value := range map[*prometheus.Desc]uint64{
		watchSentDescription: counters.Sent, watchAnsweredDescription: counters.Answered, watchDiscardedDescription: counters.Discarded,
	} {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value))
	}
}
