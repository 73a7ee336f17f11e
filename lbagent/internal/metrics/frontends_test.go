// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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

// TestSumsAreMonotonic checks that a Service's sum includes the counts of removed frontends, and of a
// frontend that was removed and added again.
func TestSumsAreMonotonic(t *testing.T) {
	var s sums
	services := map[forwarding.FrontendKey]string{frontendAt(80): "shop/web", frontendAt(443): "shop/web"}
	for step, test := range []struct {
		counters plain
		want     uint64
	}{
		{plain{frontendAt(80): {Packets: 100}, frontendAt(443): {Packets: 10}}, 110},
		{plain{frontendAt(80): {Packets: 101}}, 111},
		{plain{frontendAt(80): {Packets: 102}}, 112},
		{plain{frontendAt(80): {Packets: 102}, frontendAt(443): {Packets: 1}}, 113},
		// 80 was removed and added again between two scrapes.
		{plain{frontendAt(80): {Packets: 5}, frontendAt(443): {Packets: 1}}, 118},
		// The Service is deleted, and another one of that name created.
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

// manyFrontends is the default limit of a node.
const manyFrontends = 8192

// served serves the metrics of a node with many frontends, of which one in every has packets. It returns
// a function that scrapes without compression.
func served(t testing.TB, frontends Frontends, every int) (scrape func() []byte) {
	t.Helper()
	return servedOf(t, frontends, manyFrontends, 4, every)
}

func servedOf(t testing.TB, frontends Frontends, many, each, every int) (scrape func() []byte) {
	t.Helper()
	counters, names := plain{}, map[forwarding.FrontendKey]string{}
	for port := range many {
		key := frontendAt(port + 1)
		counters[key], names[key] = dataplane.FrontendCounters{}, fmt.Sprintf("shop/web-%d", port/each)
		if port%every == 0 {
			counters[key] = dataplane.FrontendCounters{
				Packets: 123456, Bytes: 98765432, Connections: 1234, Drops: map[string]uint64{"no_endpoint": 12},
			}
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	collector := NewCollector("v1", frontends, counters, func() []bgp.Session { return nil },
		func() map[forwarding.FrontendKey]string { return names })
	go func() { stopped <- Serve(ctx, listener, Protection{}, collector) }()
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		stop()
		if err := <-stopped; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return func() []byte {
		response, err := client.Get("http://" + listener.Addr().String() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s, %v", response.Status, err)
		}
		return content
	}
}

func TestScrapeSize(t *testing.T) {
	for _, test := range []struct {
		frontends Frontends
		every     int
		most      int
	}{
		{EachFrontend, 64, 96}, {EachService, 64, 64}, {NoFrontends, 64, 16},
		{EachService, 1, 1024}, {NoFrontends, 1, 16},
	} {
		if size := len(served(t, test.frontends, test.every)()); size > test.most<<10 {
			t.Errorf("%s, one of %d used: %d KiB, want at most %d", test.frontends, test.every, size>>10, test.most)
		}
	}
}

func BenchmarkScrape(b *testing.B) {
	for _, every := range []int{64, 1} {
		for _, frontends := range []Frontends{EachFrontend, EachService, NoFrontends} {
			b.Run(fmt.Sprintf("%s/one of %d used", frontends, every), func(b *testing.B) {
				scrape := served(b, frontends, every)
				length := 0
				for b.Loop() {
					length = len(scrape())
				}
				b.ReportMetric(float64(length)/(1<<10), "KiB/scrape")
			})
		}
	}
}
