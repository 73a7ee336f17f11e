// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics creates series of listeners and backends on first use, and deletes them with the object.
type metrics struct {
	registry    *prometheus.Registry
	requests    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	attempts    *prometheus.CounterVec
	tunnels     *prometheus.CounterVec
	routes      *prometheus.CounterVec
	abuse       *prometheus.CounterVec
	active      prometheus.Gauge
	connections prometheus.Counter
	shed        *prometheus.CounterVec
	denied      *prometheus.CounterVec
	unread      prometheus.Counter
	unmirrored  prometheus.Counter
	unserved    prometheus.Gauge
	version     *prometheus.GaugeVec
	applied     prometheus.Histogram

	listeners, backends sync.Map
	counted             sync.Map
	countedRoutes       atomic.Int64
}

func newMetrics(routes bool) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "millrace_proxy_" + name, Help: help}, labels)
		m.registry.MustRegister(vec)
		return vec
	}
	single := func(name, help string) prometheus.Counter { return counter(name, help).WithLabelValues() }
	m.requests = counter("requests_total", "Requests answered, by status.", "listener", "code")
	m.attempts = counter("backend_attempts_total", "Requests sent to endpoints, by status or error.", "backend", "result")
	m.tunnels = counter("tunnels_total", "Tunnels, by result.", "listener", "result")
	m.abuse = counter("http2_errors_total", "Errors of clients in HTTP/2.", "type")
	m.shed = counter("load_shed_total", "Connections and requests closed or rejected because of limits.", "kind")
	m.denied = counter("denied_total", "Requests rejected by a filter of their rule.", "reason")
	m.connections = single("connections_total", "Connections accepted.")
	m.unread = single("tls_handshake_errors_total", "Connections with an invalid ClientHello or a failed handshake.")
	m.unmirrored = single("mirrors_dropped_total", "Mirrored requests that were not sent because of their size or number.")
	if routes {
		m.routes = counter("route_requests_total", "Requests answered, by rule and class of status.", "route", "class")
	}
	m.duration = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "millrace_proxy_request_duration_seconds", Help: "Time from a request's header to the end of its response.",
		Buckets: []float64{.001, .005, .025, .1, .5, 2.5, 10},
	}, []string{"listener"})
	m.active = prometheus.NewGauge(prometheus.GaugeOpts{Name: "millrace_proxy_active_requests", Help: "Requests being served."})
	m.unserved = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "millrace_proxy_rejected_resources", Help: "Rejected resources of the configuration; the others are served.",
	})
	m.version = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "millrace_proxy_configuration_info", Help: "Version of the served configuration.",
	}, []string{"version"})
	m.applied = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "millrace_proxy_apply_duration_seconds", Help: "Time to apply a version of the configuration.",
		Buckets: []float64{.001, .005, .025, .1, .5},
	})
	m.registry.MustRegister(m.duration, m.active, m.version, m.applied, m.unserved)
	return m
}

// maxRouteSeries is the maximum number of routes with their own series. The others share one.
const maxRouteSeries = 10_000

func (m *metrics) route(name string, status int) {
	if m.routes == nil {
		return
	}
	if _, known := m.counted.Load(name); !known {
		if m.countedRoutes.Add(1) > maxRouteSeries {
			m.countedRoutes.Add(-1)
			name = "other"
		} else if _, loaded := m.counted.LoadOrStore(name, true); loaded {
			m.countedRoutes.Add(-1)
		}
	}
	m.routes.WithLabelValues(name, strconv.Itoa(status/100)+"xx").Inc()
}

type listenerMetrics struct {
	metrics *metrics
	name    string
	codes   counters
	once    sync.Once
	length  prometheus.Observer
}

// counters are counters by status, 0 for an error. A slice saves memory, as most listeners use few statuses.
type counters struct {
	mutex sync.Mutex
	known atomic.Pointer[[]statusCounter]
}

type statusCounter struct {
	status  int
	counter prometheus.Counter
}

func (c *counters) inc(vec *prometheus.CounterVec, name string, status int) {
	known := c.known.Load()
	if known == nil || !incKnown(*known, status) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		text := codeText(status)
		var longer []statusCounter
		if known = c.known.Load(); known != nil {
			longer = slices.Clone(*known)
		}
		longer = append(longer, statusCounter{status, vec.WithLabelValues(name, text)})
		longer[len(longer)-1].counter.Inc()
		c.known.Store(&longer)
	}
}

// codeText returns one label per class for unregistered statuses, so that a backend cannot create hundreds of
// series.
func codeText(status int) string {
	switch {
	case status == 0:
		return "error"
	case http.StatusText(status) != "", status == statusClientClosed:
		return strconv.Itoa(status)
	}
	return strconv.Itoa(status/100) + "xx"
}

func incKnown(known []statusCounter, status int) bool {
	for i := range known {
		if known[i].status == status {
			known[i].counter.Inc()
			return true
		}
	}
	return false
}

func (m *metrics) listener(name string) *listenerMetrics {
	found, _ := m.listeners.LoadOrStore(name, &listenerMetrics{metrics: m, name: name})
	return found.(*listenerMetrics)
}

func (l *listenerMetrics) observe(status int, took time.Duration) {
	l.codes.inc(l.metrics.requests, l.name, status)
	l.once.Do(func() { l.length = l.metrics.duration.WithLabelValues(l.name) })
	l.length.Observe(took.Seconds())
}

func (l *listenerMetrics) tunnel() func(result string) {
	return func(result string) { l.metrics.tunnels.WithLabelValues(l.name, result).Inc() }
}

type backendMetrics struct {
	metrics *metrics
	name    string
	codes   counters
	tried   func(status int, err error)
}

func (m *metrics) backend(name string) *backendMetrics {
	if found, ok := m.backends.Load(name); ok {
		return found.(*backendMetrics)
	}
	b := &backendMetrics{metrics: m, name: name}
	b.tried = func(status int, err error) {
		if err != nil {
			status = 0
		}
		b.codes.inc(m.attempts, name, status)
	}
	found, _ := m.backends.LoadOrStore(name, b)
	return found.(*backendMetrics)
}

// recordTable records a new table and deletes the series of removed listeners, backends and rules.
func (m *metrics) recordTable(current *table, changes map[string]change, took time.Duration) {
	m.applied.Observe(took.Seconds())
	m.version.Reset()
	m.version.WithLabelValues(current.version).Set(1)
	regrouped := false
	for name, each := range changes {
		if each.old.GetListener() != nil && each.now.GetListener() == nil {
			m.listeners.Delete(name)
			labels := prometheus.Labels{"listener": name}
			m.requests.DeletePartialMatch(labels)
			m.duration.DeletePartialMatch(labels)
			m.tunnels.DeletePartialMatch(labels)
		}
		if each.old.GetBackend() != nil && each.now.GetBackend() == nil {
			m.backends.Delete(name)
			m.attempts.DeletePartialMatch(prometheus.Labels{"backend": name})
		}
		regrouped = regrouped || each.old.GetRouteGroup() != nil
	}
	if regrouped {
		m.forgetRoutes(current)
	}
}

func (m *metrics) forgetRoutes(current *table) {
	if m.routes == nil {
		return
	}
	kept := map[string]bool{}
	for _, group := range current.groups {
		for _, rule := range group.value.Rules {
			kept[rule.route] = true
		}
	}
	m.counted.Range(func(name, _ any) bool {
		if !kept[name.(string)] {
			m.counted.Delete(name)
			m.countedRoutes.Add(-1)
			m.routes.DeletePartialMatch(prometheus.Labels{"route": name.(string)})
		}
		return true
	})
}
