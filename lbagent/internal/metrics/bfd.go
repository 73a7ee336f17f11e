// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-lb/millrace/lbagent/internal/bfd"
	"github.com/millrace-lb/millrace/lbagent/internal/bfd/control"
)

var (
	bfdDescription          = description("bfd_session_up", "Whether the BFD session with the peer is up (1) or not (0).", "peer")
	bfdLossesDescription    = description("bfd_session_flaps_total", "Number of times that the BFD session with the peer was lost.", "peer")
	bfdDetectionDescription = description("bfd_detection_time_seconds", "Detection time of the BFD session with the peer.", "peer")
	bfdDiscardedDescription = description("bfd_packets_discarded_total", "BFD packets discarded because they match no session, by reason.", "reason")
	bfdDelayDescription     = description("bfd_max_send_delay_seconds", "Longest delay of a sent BFD packet since the process started.")
	bfdProcessDescription   = description("bfd_process_up", "Whether the process with the BFD sessions responds (1) or not (0).")
)

// BFD collects the metrics of the BFD process from its last report.
type BFD struct {
	report func() (control.Report, error)
}

// NewBFD returns a collector that calls report.
func NewBFD(report func() (control.Report, error)) *BFD { return &BFD{report} }

// Describe implements prometheus.Collector.
func (*BFD) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		bfdDescription, bfdLossesDescription, bfdDetectionDescription, bfdDiscardedDescription, bfdDelayDescription, bfdProcessDescription,
	} {
		descriptions <- d
	}
}

// Collect implements prometheus.Collector.
func (b *BFD) Collect(metrics chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	count := func(d *prometheus.Desc, value uint64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	report, err := b.report()
	if err != nil {
		gauge(bfdProcessDescription, 0)
		return
	}
	gauge(bfdProcessDescription, 1)
	gauge(bfdDelayDescription, report.LongestDelay.Seconds())
	for reason, packets := range report.Discarded {
		count(bfdDiscardedDescription, packets, reason)
	}
	for _, session := range report.Sessions {
		up := 0.0
		if session.State == bfd.Up {
			up = 1
		}
		gauge(bfdDescription, up, session.Peer)
		gauge(bfdDetectionDescription, session.DetectionTime.Seconds(), session.Peer)
		count(bfdLossesDescription, session.Losses, session.Peer)
	}
}
