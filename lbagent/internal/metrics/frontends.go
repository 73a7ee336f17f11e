// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// Frontends selects the series for counters of frontends.
type Frontends string

// With 8,192 frontends, series for each frontend are megabytes per scrape.
const (
	// EachFrontend exposes series for each VIP, port and protocol.
	EachFrontend Frontends = "all"
	// EachService exposes series for each Service, as sums over its frontends.
	EachService Frontends = "service"
	// NoFrontends exposes no such series.
	NoFrontends Frontends = "none"
)

// Set implements pflag.Value.
func (f *Frontends) Set(text string) error {
	if !slices.Contains([]Frontends{EachFrontend, EachService, NoFrontends}, Frontends(text)) {
		return fmt.Errorf("%q: must be %s, %s or %s", text, EachFrontend, EachService, NoFrontends)
	}
	*f = Frontends(text)
	return nil
}

// String implements pflag.Value.
func (f *Frontends) String() string { return string(*f) }

// Type implements pflag.Value.
func (*Frontends) Type() string { return "all|service|none" }

// frontendLabels are the labels of a frontend's series, serviceLabels the labels of a Service's series.
var (
	serviceLabels  = []string{"namespace", "service"}
	frontendLabels = append([]string{"vip", "port", "protocol"}, serviceLabels...)
)

type frontendSeries struct{ packets, bytes, connections, drops *prometheus.Desc }

func newFrontendSeries(labels []string) *frontendSeries {
	return &frontendSeries{
		packets:     description("frontend_packets_total", "Packets of a frontend that the node received from the network.", labels...),
		bytes:       description("frontend_bytes_total", "Bytes of a frontend that the node received from the network.", labels...),
		connections: description("frontend_connections_total", "Connections that endpoints on the node accepted.", labels...),
		drops:       description("frontend_drops_total", "Packets of a frontend that the node dropped, by reason.", append(slices.Clone(labels), "reason")...),
	}
}

// collect skips zero values, because most frontends get no packet on most nodes.
func (s *frontendSeries) collect(metrics chan<- prometheus.Metric, counters dataplane.FrontendCounters, labels []string) {
	count := func(d *prometheus.Desc, value uint64, labels ...string) {
		if value > 0 {
			metrics <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
		}
	}
	count(s.packets, counters.Packets, labels...)
	count(s.bytes, counters.Bytes, labels...)
	count(s.connections, counters.Connections, labels...)
	for reason, packets := range counters.Drops {
		count(s.drops, packets, append(slices.Clone(labels), reason)...)
	}
}

// labelsOf returns the values of frontendLabels. service is namespace/name, or empty for a frontend that
// is being removed.
func labelsOf(key forwarding.FrontendKey, service string) []string {
	return append([]string{key.VIP.String(), strconv.Itoa(int(key.Port)), forwarding.ProtocolName(key.Protocol)}, serviceLabelsOf(service)...)
}

func serviceLabelsOf(service string) []string {
	namespace, name, _ := strings.Cut(service, "/")
	return []string{namespace, name}
}

// sums are counters by Service that never decrease while the Service has frontends, because Prometheus
// would treat a decrease as a reset.
type sums struct {
	mutex   sync.Mutex
	last    map[seriesKey]dataplane.FrontendCounters
	removed map[string]dataplane.FrontendCounters
}

type seriesKey struct {
	key     forwarding.FrontendKey
	service string
}

func (s *sums) add(counters map[forwarding.FrontendKey]dataplane.FrontendCounters, services map[forwarding.FrontendKey]string) map[string]dataplane.FrontendCounters {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	current := make(map[seriesKey]dataplane.FrontendCounters, len(counters))
	totals := map[string]dataplane.FrontendCounters{}
	for key, counter := range counters {
		of := seriesKey{key, services[key]}
		if of.service == "" {
			// The frontend is being removed. Its Service retains the previous counts.
			continue
		}
		current[of] = counter
		totals[of.service] = plus(totals[of.service], counter)
	}
	gone := map[string]dataplane.FrontendCounters{}
	for service := range totals {
		if before, ok := s.removed[service]; ok {
			gone[service] = before
		}
	}
	for of, before := range s.last {
		// A frontend that was removed and added again counts from zero.
		now, ok := current[of]
		if _, serves := totals[of.service]; serves && (!ok || restarted(before, now)) {
			gone[of.service] = plus(gone[of.service], before)
		}
	}
	for service, before := range gone {
		totals[service] = plus(totals[service], before)
	}
	s.last, s.removed = current, gone
	return totals
}

func restarted(before, now dataplane.FrontendCounters) bool {
	for reason, packets := range before.Drops {
		if now.Drops[reason] < packets {
			return true
		}
	}
	return now.Packets < before.Packets || now.Bytes < before.Bytes || now.Connections < before.Connections
}

func plus(a, b dataplane.FrontendCounters) dataplane.FrontendCounters {
	sum := dataplane.FrontendCounters{
		Packets: a.Packets + b.Packets, Bytes: a.Bytes + b.Bytes, Connections: a.Connections + b.Connections,
		Drops: make(map[string]uint64, len(a.Drops)+len(b.Drops)),
	}
	for _, drops := range []map[string]uint64{a.Drops, b.Drops} {
		for reason, packets := range drops {
			sum.Drops[reason] += packets
		}
	}
	return sum
}
