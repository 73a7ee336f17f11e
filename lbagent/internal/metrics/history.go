// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

var (
	historyBytesDescription   = description("history_bytes", "Size of the history on the node.")
	historyDroppedDescription = description("history_entries_dropped_total",
		"Entries missing in the history because there were too many of their kind.", "kind")
	historyUnwrittenDescription = description("history_entries_unwritten_total", "Entries missing in the history because they could not be written.")
)

// History are the values for the metrics of the history.
type History struct {
	Bytes     int64
	Dropped   map[string]uint64
	Unwritten uint64
}

// HistoryMetrics collects the metrics of the history.
type HistoryMetrics struct{ read func() History }

// NewHistory returns a collector that calls read.
func NewHistory(read func() History) *HistoryMetrics { return &HistoryMetrics{read} }

// Describe implements prometheus.Collector.
func (*HistoryMetrics) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- historyBytesDescription
	descriptions <- historyDroppedDescription
	descriptions <- historyUnwrittenDescription
}

// Collect implements prometheus.Collector.
func (h *HistoryMetrics) Collect(metrics chan<- prometheus.Metric) {
	history := h.read()
	metrics <- prometheus.MustNewConstMetric(historyBytesDescription, prometheus.GaugeValue, float64(history.Bytes))
	for kind, count := range history.Dropped {
		metrics <- prometheus.MustNewConstMetric(historyDroppedDescription, prometheus.CounterValue, float64(count), kind)
	}
	metrics <- prometheus.MustNewConstMetric(historyUnwrittenDescription, prometheus.CounterValue, float64(history.Unwritten))
}
