// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/millrace-lb/millrace/gateway/resource"
)

// TestLoop checks that a forwarding loop returns 508 after eight hops, even if filters modify the header.
func TestLoop(t *testing.T) {
	for name, protocol := range map[string]resource.Backend_Protocol{"HTTP/1.1": resource.Backend_HTTP1, "HTTP/2": resource.Backend_H2C} {
		t.Run(name, func(t *testing.T) {
			port := freePort(t)
			remove := &resource.Filter{Kind: &resource.Filter_RequestHeaders{RequestHeaders: &resource.HeaderChange{Remove: []string{"cdn-loop"}}}}
			list := backend("a", client127(port))
			list[0].GetBackend().Protocol = protocol
			f := start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a", remove))), list)...)
			got := get(t, client(t, port, nil), "http://a.example.com/")
			if got.StatusCode != http.StatusLoopDetected || !strings.Contains(got.body, "Loop Detected") {
				t.Errorf("status %d, %q; want 508", got.StatusCode, got.body)
			}
			_, text := status(t, f.Admin(), "/metrics")
			if !strings.Contains(text, fmt.Sprintf("millrace_proxy_requests_total{code=\"508\",listener=\"l\"} %d\n", maxHops+1)) {
				t.Errorf("want 9 requests with status 508: %s", text)
			}
		})
	}
}

func TestHopsPass(t *testing.T) {
	port := freePort(t)
	var seen atomic.Pointer[[]string]
	start(t, nil, all(one(httpListener("l", port, nil), routes("r", "l", nil, toward("/", "a"))),
		backend("a", serve(t, func(_ http.ResponseWriter, r *http.Request) {
			values := r.Header.Values("CDN-Loop")
			seen.Store(&values)
		})))...)
	c := client(t, port, nil)
	for in, want := range map[string]string{
		"":                                  "millrace",
		"cdn.example; id=1":                 "cdn.example; id=1, millrace",
		"millrace, other,millrace;hops=2":   "millrace, other,millrace;hops=2, millrace",
		strings.Repeat("millrace,", 7):      strings.Repeat("millrace,", 7) + ", millrace",
		strings.Repeat("millrace-two,", 20): strings.Repeat("millrace-two,", 20) + ", millrace",
	} {
		var headers []string
		if in != "" {
			headers = []string{"CDN-Loop: " + in}
		}
		if got := get(t, c, "http://a/", headers...); got.StatusCode != http.StatusOK {
			t.Errorf("%q: status %d", in, got.StatusCode)
			continue
		}
		if got := *seen.Load(); len(got) != 1 || got[0] != want {
			t.Errorf("%q was forwarded as %q, want %q", in, got, want)
		}
	}
	if got := get(t, c, "http://a/", "CDN-Loop: "+strings.Repeat("millrace,", 5), "CDN-Loop: millrace, millrace; x, millrace"); got.StatusCode != http.StatusLoopDetected {
		t.Errorf("eight hops: status %d, want 508", got.StatusCode)
	}
	if len(firstHop) != 1 || cap(firstHop) != 1 {
		t.Error("the shared header can be modified")
	}
}
