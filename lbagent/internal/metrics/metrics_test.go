// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/lbagent/internal/bgp"
	"github.com/millrace-lb/millrace/lbagent/internal/dataplane"
	"github.com/millrace-lb/millrace/lbagent/internal/forwarding"
)

type counting struct{ err error }

func (c counting) CountersOf(wanted func(forwarding.FrontendKey) bool) (dataplane.Counters, error) {
	counters := dataplane.Counters{
		Frontends: map[forwarding.FrontendKey]dataplane.FrontendCounters{
			{VIP: netip.MustParseAddr("2001:db8::2"), Port: 53, Protocol: 17}: {},
			{VIP: netip.MustParseAddr("2001:db8::1"), Port: 53, Protocol: 17}: {Packets: 3, Bytes: 300, Connections: 2, Drops: map[string]uint64{"no_endpoint": 9}},
		},
		Drops:         map[string]uint64{"no_frontend": 7},
		TransmitDrops: []dataplane.UplinkTransmitDrops{{Interface: "eth0", Transmit: 8, Redirect: 9}},
		Events:        map[string]uint64{"lookup_forwarded": 1},

		SamplesSkipped: 40,
		SamplesLost:    4,
	}
	if wanted == nil {
		counters.Frontends = nil
	}
	return counters, c.err
}

func (c counting) Connections() (dataplane.Connections, error) {
	return dataplane.Connections{TCP: 4, UDP: 5, HalfOpen: 6, Capacity: 1000}, nil
}

func observedSessions() []bgp.Session {
	return []bgp.Session{
		{Peer: "up", State: millracev1beta1.SessionEstablished, Routes: 12, Flaps: 3, Since: time.Unix(1000, 5e8), UpdatesSent: 4},
		{Peer: "down", State: millracev1beta1.SessionActive},
	}
}

func services() map[forwarding.FrontendKey]string {
	return map[forwarding.FrontendKey]string{
		{VIP: netip.MustParseAddr("2001:db8::1"), Port: 53, Protocol: 17}: "dns/resolver",
	}
}

func passes() *Passes {
	p := NewPasses()
	state := forwarding.NewState()
	state.VIPs[netip.MustParseAddr("2001:db8::1")] = struct{}{}
	state.SourceRanges[forwarding.SourceRange{Set: 1, Prefix: netip.MustParsePrefix("2001:db8::/32")}] = struct{}{}
	found := Pass{
		Usage: state.Usage(), Limits: forwarding.Limits{VIPs: 5, SourceRanges: 6},
		Uplinks: []millracev1beta1.InterfaceStatus{{Name: "eth0", XDPMode: millracev1beta1.XDPGeneric}},
	}
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p.Observe(began, began.Add(2*time.Second), nil, found)
	p.Observe(began.Add(3*time.Second), began.Add(4*time.Second), errors.New("full"), found)
	return p
}

// TestConventions checks the conventions of Prometheus for names and types, and that every series of a
// frontend has the labels of its Service.
func TestConventions(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector("v1", EachFrontend, counting{}, observedSessions, services), passes())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
	frontends := 0
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "millrace_frontend_") {
			continue
		}
		for _, metric := range family.GetMetric() {
			frontends++
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			if labels["namespace"] != "dns" || labels["service"] != "resolver" {
				t.Errorf("%s has labels %v, want those of the Service", family.GetName(), labels)
			}
		}
	}
	if frontends != 4 {
		t.Errorf("%d frontend series, want 4", frontends)
	}
}

// serve serves until the test ends and returns the URL. started runs a server on a free port until the
// test ends, and returns its address.
func started(t *testing.T, run func(context.Context, net.Listener) error) string {
	t.Helper()
	listener, err := Listen("127.0.0.1:0", "some-flag")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- run(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the server returned %v, want context.Canceled", err)
		}
	})
	return "http://" + listener.Addr().String()
}

func serveMetrics(t *testing.T, own ...prometheus.Collector) string {
	t.Helper()
	return started(t, func(ctx context.Context, listener net.Listener) error {
		return Serve(ctx, listener, Protection{}, own...)
	})
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func TestMetrics(t *testing.T) {
	url := serveMetrics(t, NewCollector("v1", EachFrontend, counting{}, observedSessions, services), passes())
	code, body := get(t, url+"/metrics")
	if code != http.StatusOK {
		t.Fatalf("status %d: %s", code, body)
	}
	for _, line := range []string{
		`millrace_build_info{version="v1"} 1`,
		`millrace_drops_total{reason="no_frontend"} 7`,
		`millrace_uplink_transmit_drops_total{interface="eth0",reason="xdp_tx"} 8`,
		`millrace_uplink_transmit_drops_total{interface="eth0",reason="xdp_redirect"} 9`,
		`millrace_events_total{event="lookup_forwarded"} 1`,
		`millrace_frontend_packets_total{namespace="dns",port="53",protocol="UDP",service="resolver",vip="2001:db8::1"} 3`,
		`millrace_frontend_bytes_total{namespace="dns",port="53",protocol="UDP",service="resolver",vip="2001:db8::1"} 300`,
		`millrace_frontend_connections_total{namespace="dns",port="53",protocol="UDP",service="resolver",vip="2001:db8::1"} 2`,
		`millrace_frontend_drops_total{namespace="dns",port="53",protocol="UDP",reason="no_endpoint",service="resolver",vip="2001:db8::1"} 9`,
		`millrace_drops_unsampled_total{cause="rate"} 40`,
		`millrace_drops_unsampled_total{cause="ring_full"} 4`,
		`millrace_connections{kind="tcp"} 4`,
		`millrace_connections{kind="half_open"} 6`,
		`millrace_connections_capacity 1000`,
		`millrace_bgp_session_up{peer="up"} 1`,
		`millrace_bgp_session_up{peer="down"} 0`,
		`millrace_bgp_routes_announced{peer="up"} 12`,
		`millrace_bgp_session_flaps_total{peer="up"} 3`,
		`millrace_bgp_session_change_timestamp_seconds{peer="up"} 1000.5`,
		`millrace_bgp_updates_total{direction="sent",peer="up"} 4`,
		`millrace_bgp_updates_total{direction="received",peer="up"} 0`,
		`millrace_bgp_session_flaps_total{peer="down"} 0`,
		`millrace_pass_duration_seconds_count 2`,
		`millrace_pass_duration_seconds_sum 3`,
		`millrace_pass_errors_total 1`,
		`millrace_pass_last_success_timestamp_seconds 1.767225602e+09`,
		`millrace_map_entries{map="vips"} 1`,
		`millrace_map_capacity{map="vips"} 5`,
		`millrace_map_entries{map="source_ranges_ipv6"} 1`,
		`millrace_map_entries{map="source_ranges_ipv4"} 0`,
		`millrace_uplink_xdp_mode{interface="eth0",mode="Generic"} 1`,
		`millrace_uplink_xdp_mode{interface="eth0",mode="Native"} 0`,
		`go_goroutines `,
	} {
		if !strings.Contains(body, "\n"+line) {
			t.Errorf("missing line %s", line)
		}
	}
	if strings.Contains(body, "\nmillrace_bgp_session_last_error") {
		t.Error("time of the last error is exposed although there was none")
	}
}

// TestUnreadableCounters checks that an error of one metric does not hide others.
func TestUnreadableCounters(t *testing.T) {
	url := serveMetrics(t, NewCollector("v1", EachFrontend, counting{errors.New("gone")}, observedSessions, services), passes())
	code, body := get(t, url+"/metrics")
	if code != http.StatusOK || !strings.Contains(body, "\nmillrace_bgp_session_up") || strings.Contains(body, "\nmillrace_drops_total") {
		t.Errorf("status %d, body %s", code, body)
	}
}

func TestProbes(t *testing.T) {
	health := Health{
		Alive: func() error { return nil },
		Ready: func() error { return errors.New("not yet") },
	}
	url := started(t, func(ctx context.Context, listener net.Listener) error {
		return ServeHealth(ctx, listener, health)
	})
	if code, body := get(t, url+"/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz: %d %s", code, body)
	}
	if code, body := get(t, url+"/readyz"); code != http.StatusServiceUnavailable || body != "not yet\n" {
		t.Errorf("/readyz: %d %s", code, body)
	}
}

func TestListen(t *testing.T) {
	if _, err := Listen("nowhere", "some-flag"); err == nil || !strings.Contains(err.Error(), "--some-flag") {
		t.Errorf("error %v does not contain the flag", err)
	}
}
