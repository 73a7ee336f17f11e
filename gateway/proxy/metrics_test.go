// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

type syncBuffer struct {
	mutex sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.Buffer.Write(p)
}

func (b *syncBuffer) lines() int {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return bytes.Count(b.Bytes(), []byte("\n"))
}

func (b *syncBuffer) take() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	defer b.Reset()
	return b.String()
}

func TestMetricsAndAccessLog(t *testing.T) {
	port := freePort(t)
	var log syncBuffer
	f := start(t, func(s *Settings) {
		s.RouteMetrics = true
		s.AccessLog = slog.New(slog.NewJSONHandler(&log, nil))
	}, all(one(httpListener("l", port, nil), routes("r", "l", hostname("a"), toward("/none", "b"), toward("/", "a"))),
		backend("a", serve(t, echo("a"))), backend("b"))...)
	c := client(t, port, nil)
	get(t, c, "http://a/x?secret")
	get(t, c, "http://a/x")
	get(t, c, "http://a/none")
	get(t, c, "http://other/")
	// Requests are counted after their response, which the client may see before.
	_, text := status(t, f.Admin(), "/metrics")
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) &&
		!strings.Contains(text, `duration_seconds_count{listener="l"} 4`); {
		_, text = status(t, f.Admin(), "/metrics")
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && log.lines() < 4; {
		runtime.Gosched()
	}
	for _, want := range []string{
		`millrace_proxy_requests_total{code="200",listener="l"} 2`,
		`millrace_proxy_requests_total{code="503",listener="l"} 1`,
		`millrace_proxy_requests_total{code="404",listener="l"} 1`,
		`millrace_proxy_request_duration_seconds_count{listener="l"} 4`,
		`millrace_proxy_backend_attempts_total{backend="a",result="200"} 2`,
		`millrace_proxy_route_requests_total{class="5xx",route="httproute/default/b/0"} 1`,
		`millrace_proxy_configuration_info{version="1"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	lines := strings.Split(strings.TrimSpace(log.take()), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d records; want 4:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	var record map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &record); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"method": "GET", "host": "a", "path": "/x", "status": 200.0, "listener": "l", "backend": "a", "attempts": 1.0, "route": "httproute/default/a/0",
	} {
		if record[key] != want {
			t.Errorf("%s is %v; want %v in %s", key, record[key], want, lines[0])
		}
	}
	if strings.Contains(lines[0], "secret") {
		t.Errorf("the log contains the query: %s", lines[0])
	}
	f.apply()
	if _, text := status(t, f.Admin(), "/metrics"); strings.Contains(text, `listener="l"`) || strings.Contains(text, `route="`) || strings.Contains(text, `backend="a"`) {
		t.Errorf("series of removed objects are still exposed:\n%s", text)
	}
}
