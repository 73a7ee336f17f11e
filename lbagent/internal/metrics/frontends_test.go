// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

// plain are counters of frontends without anything else.
type plain map[forwarding.FrontendKey]dataplane.FrontendCounters

func (p plain) CountersOf(wanted func(forwarding.FrontendKey) bool) (dataplane.Counters, error) {
	if wanted == nil {
		return dataplane.Counters{}, nil
	}
	return dataplane.Counters{Frontends: p}, nil
}

func (plain) Connections() (dataplane.Connections, error) { return dataplane.Connections{}, nil }

func frontendAt(port int) forwarding.FrontendKey {
	return forwarding.FrontendKey{VIP: netip.AddrFrom4([4]byte{203, 0, 113, byte(port >> 8)}), Port: uint16(port), Protocol: 6}
}

// scrape returns the series of frontends as Prometheus reads them, sorted.
func scrape(t testing.TB, c *Collector) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	get := scraper(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	var series []string
	for line := range strings.Lines(get()) {
		if strings.HasPrefix(line, "millrace_frontend_") {
			series = append(series, strings.TrimSpace(line))
		}
	}
	slices.Sort(series)
	return series
}

// scraper returns a function that scrapes.
func scraper(handler http.Handler) func() string {
	return func() string {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return recorder.Body.String()
	}
}

func TestFrontendSeries(t *testing.T) {
	counters := plain{
		frontendAt(80):  {Packets: 3, Bytes: 300, Drops: map[string]uint64{"no_endpoint": 9}},
		frontendAt(443): {Packets: 4, Bytes: 400, Connections: 1, Drops: map[string]uint64{"no_endpoint": 1}},
		frontendAt(53):  {},
	}
	services := func() map[forwarding.FrontendKey]string {
		return map[forwarding.FrontendKey]string{frontendAt(80): "shop/web", frontendAt(443): "shop/web", frontendAt(53): "dns/a"}
	}
	at := func(port int) string {
		return fmt.Sprintf(`namespace="shop",port="%d",protocol="TCP",service="web",vip="203.0.113.%d"`, port, port>>8)
	}
	for name, test := range map[string]struct {
		frontends Frontends
		want      []string
	}{
		"all": {EachFrontend, []string{
			"millrace_frontend_bytes_total{" + at(443) + "} 400",
			"millrace_frontend_bytes_total{" + at(80) + "} 300",
			"millrace_frontend_connections_total{" + at(443) + "} 1",
			"millrace_frontend_drops_total{" + strings.Replace(at(443), ",service", `,reason="no_endpoint",service`, 1) + "} 1",
			"millrace_frontend_drops_total{" + strings.Replace(at(80), ",service", `,reason="no_endpoint",service`, 1) + "} 9",
			"millrace_frontend_packets_total{" + at(443) + "} 4",
			"millrace_frontend_packets_total{" + at(80) + "} 3",
		}},
		"service": {EachService, []string{
			`millrace_frontend_bytes_total{namespace="shop",service="web"} 700`,
			`millrace_frontend_connections_total{namespace="shop",service="web"} 1`,
			`millrace_frontend_drops_total{namespace="shop",reason="no_endpoint",service="web"} 10`,
			`millrace_frontend_packets_total{namespace="shop",service="web"} 7`,
		}},
		"none": {NoFrontends, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := scrape(t, NewCollector("v1", test.frontends, counters, func() []bgp.Session { return nil }, services))
			slices.Sort(test.want)
			if diff := cmp.Diff(test.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSumsOnlyGrow: a Service's sum has what its frontends counted that are gone, and what one
// counted that was removed and is back.
func TestSumsOnlyGrow(t *testing.T) {
	var s sums
	services := map[forwarding.FrontendKey]string{frontendAt(80): "shop/web", frontendAt(443): "shop/web"}
	for step, test := range []struct {
		counters plain
		want     uint64
	}{
		{plain{frontendAt(80): {Packets: 100}, frontendAt(443): {Packets: 10}}, 110},
		{plain{frontendAt(80): {Packets: 101}}, 111},
		{plain{frontendAt(80): {Packets: 102}}, 112},
		// 443 is back.
		{plain{frontendAt(80): {Packets: 102}, frontendAt(443): {Packets: 1}}, 113},
		// 80 was removed and is back between two scrapes.
		{plain{frontendAt(80): {Packets: 5}, frontendAt(443): {Packets: 1}}, 118},
		// The Service is gone, and then another one of that name.
		{plain{}, 0},
		{plain{frontendAt(80): {Packets: 2}}, 2},
	} {
		if got := s.add(test.counters, services)["shop/web"].Packets; got != test.want {
			t.Errorf("step %d: %d packets, want %d", step, got, test.want)
		}
	}
	var drops sums
	drops.add(plain{frontendAt(80): {Drops: map[string]uint64{"no_endpoint": 5}}}, services)
	again := drops.add(plain{frontendAt(80): {Drops: map[string]uint64{"no_endpoint": 2}}}, services)
	if got := again["shop/web"].Drops["no_endpoint"]; got != 7 {
		t.Errorf("%d drops, want 7", got)
	}
}

// BenchmarkScrape is of a node with 8,192 frontends, of which one in 64 has seen a packet.
func BenchmarkScrape(b *testing.B) {
	counters, names := plain{}, map[forwarding.FrontendKey]string{}
	for port := 1; port <= 8192; port++ {
		counters[frontendAt(port)], names[frontendAt(port)] = dataplane.FrontendCounters{}, fmt.Sprintf("shop/web%d", port/4)
		if port%64 == 0 {
			counters[frontendAt(port)] = dataplane.FrontendCounters{Packets: 1, Bytes: 40, Connections: 1}
		}
	}
	services := func() map[forwarding.FrontendKey]string { return names }
	for _, frontends := range []Frontends{EachFrontend, EachService, NoFrontends} {
		b.Run(string(frontends), func(b *testing.B) {
			registry := prometheus.NewRegistry()
			registry.MustRegister(NewCollector("v1", frontends, counters, func() []bgp.Session { return nil }, services))
			get := scraper(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
			length := 0
			for b.Loop() {
				length = len(get())
			}
			b.ReportMetric(float64(length), "bytes/scrape")
		})
	}
}
