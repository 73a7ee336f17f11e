// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestResetsAreBounded checks for GOAWAY even if each request reaches the backend, so that net/http's limit is
// not exceeded.
func TestResetsAreBounded(t *testing.T) {
	for name, answers := range map[string]bool{"before the answer": false, "in the answer": true} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			var reached atomic.Int64
			begun := make(chan struct{}, 1)
			f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
				backend("a", serve(t, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/fine" {
						return
					}
					reached.Add(1)
					if answers {
						w.WriteHeader(http.StatusOK)
						_ = http.NewResponseController(w).Flush()
					}
					begun <- struct{}{}
					<-r.Context().Done()
				})))...)
			c := dialHTTP2(t, port)
			answered, ended := make(chan struct{}, 1), make(chan bool, 1)
			go func() {
				away := false
				for {
					frame, err := c.ReadFrame()
					if err != nil {
						ended <- away
						close(answered)
						return
					}
					switch frame.(type) {
					case *http2.GoAwayFrame:
						away = true
					case *http2.MetaHeadersFrame:
						answered <- struct{}{}
					}
				}
			}()
			began, away, open := time.Now(), false, true
			for open {
				stream, err := c.request(":method GET", ":scheme http", ":authority a", ":path /")
				if err != nil {
					away = <-ended
					break
				}
				select {
				case <-begun:
					if answers {
						<-answered
					}
					_ = c.WriteRSTStream(stream, http2.ErrCodeCancel)
				case away = <-ended:
					open = false
				}
			}
			// 200, and 20 more per second, plus requests in flight.
			most := int64(200 + 20*time.Since(began).Seconds() + 30)
			if n := reached.Load(); n > most || n < 200 || away == answers {
				t.Errorf("%d requests reached the backend, GOAWAY %v; want 200 to %d, GOAWAY %v", n, away, most, !answers)
			}
			if got := get(t, client(t, port, nil), "http://a/fine"); got.StatusCode != 200 {
				t.Errorf("another client: %d; want 200", got.StatusCode)
			}
			const want = `millrace_proxy_http2_errors_total{type="too_many_resets"}`
			if _, text := status(t, f.Admin(), "/metrics"); !strings.Contains(text, want) {
				t.Errorf("metrics do not contain %s", want)
			}
		})
	}
}
