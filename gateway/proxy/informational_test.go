// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// TestEndlessInformational checks ResponseTimeout. Over HTTP/1.1 they count as header bytes and end earlier.
func TestEndlessInformational(t *testing.T) {
	for name, protocol := range map[string]resource.Backend_Protocol{"HTTP/1.1": resource.Backend_HTTP1, "HTTP/2": resource.Backend_H2C} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			sent := make(chan int, 1)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Link", "</style.css>; rel=preload")
				count := 0
				for ; r.Context().Err() == nil; count++ {
					w.WriteHeader(http.StatusEarlyHints)
				}
				sent <- count
			}))
			server.Config.Protocols = new(http.Protocols)
			server.Config.Protocols.SetHTTP1(true)
			server.Config.Protocols.SetUnencryptedHTTP2(true)
			server.Start()
			t.Cleanup(server.Close)
			list := backend("a", server.Listener.Addr().String())
			list[0].GetBackend().Protocol = protocol
			start(t, func(s *Settings) { s.ResponseTimeout = 2 * time.Second },
				all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))), list)...)
			begun := time.Now()
			got := get(t, client(t, port, nil), "http://a.example.com/")
			if took := time.Since(begun); got.StatusCode/100 != 5 || took > 10*time.Second {
				t.Errorf("status %d after %s; want an error within 2 s", got.StatusCode, took)
			}
			if count := <-sent; count < 2 {
				t.Errorf("the backend sent only %d responses", count)
			} else {
				t.Logf("status %d after %s and %d responses", got.StatusCode, time.Since(begun), count)
			}
		})
	}
}
