// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/ui/view"
)

func changesOf(t *testing.T, printed string) func() view.Change {
	t.Helper()
	address, token, found := strings.Cut(strings.TrimSpace(printed), "/#token=")
	if !found || !strings.HasPrefix(address, "http://127.0.0.1:") {
		t.Fatalf("it printed %q", printed)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/api/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%v: %v", response, err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	reader := bufio.NewReader(response.Body)
	return func() view.Change {
		for {
			line, err := reader.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			var change view.Change
			if data, is := strings.CutPrefix(line, "data: "); is {
				if err := json.Unmarshal([]byte(data), &change); err != nil {
					t.Fatal(err)
				}
				return change
			}
		}
	}
}

func TestUI(t *testing.T) {
	l := living{make(chan string)}
	refused := there().with(liveRoot, http.StatusNotFound)
	for _, path := range []string{"/api/v1/services", "/apis/millrace.io/v1beta1/viproutes"} {
		refused[path] = http.StatusForbidden
	}
	api := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		if _, is := refused[request.URL.Path].(int); is {
			refused.ServeHTTP(out, request)
			return
		}
		l.ServeHTTP(out, request)
	}))
	defer api.Close()
	stdout := output{make(chan string)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() {
		ended <- run(ctx, environment{args: []string{"millrace", "ui", "--kubeconfig", kubeconfigOf(t, api.URL)}, stdout: stdout, stderr: t.Output(), width: 100})
	}()
	next := changesOf(t, stdout.until(t, "\n"))
	first := next()
	var head view.Head
	if err := json.Unmarshal(first.Head, &head); err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, refusal := range head.Refused {
		kinds = append(kinds, refusal.Kind)
	}
	if got := strings.Join(kinds, " "); got != "viproutes services" {
		t.Errorf("%q may not be read, want viproutes and services", got)
	}
	if !first.Full || first.Services == nil || len(first.Services.Set) == 0 || first.Nodes == nil {
		t.Fatalf("the first event is %+v", first)
	}
	l.events <- `{"type":"ADDED","object":{"apiVersion":"millrace.io/v1beta1","kind":"VIP","metadata":{"name":"203.0.113.3","resourceVersion":"2"},"spec":{"address":"203.0.113.3"}}}`
	for change := next(); ; change = next() {
		if change.Services == nil {
			continue
		}
		if len(change.Services.Set) != 1 || !strings.Contains(string(change.Services.Set[0]), `"vip/203.0.113.3"`) || change.Full {
			t.Errorf("the change is %+v, want the new VIP alone", change)
		}
		break
	}
	cancel()
	if code := <-ended; code != exitOK {
		t.Errorf("exit code %d after it was interrupted", code)
	}
}

// An API server that rejects everything is an outage, too, and does not end the command.
func TestUIRefusal(t *testing.T) {
	for _, status := range []int{http.StatusUnauthorized, http.StatusServiceUnavailable} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			var refuses atomic.Bool
			api := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
				if refuses.Load() {
					http.Error(out, "it refuses", status)
					return
				}
				living{}.ServeHTTP(out, request)
			}))
			defer api.Close()
			stdout := output{make(chan string)}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan int)
			go func() {
				ended <- run(ctx, environment{args: []string{"millrace", "ui", "--kubeconfig", kubeconfigOf(t, api.URL)}, stdout: stdout, stderr: t.Output(), width: 100})
			}()
			next := changesOf(t, stdout.until(t, "\n"))
			until := func(away bool) *view.Outage {
				for {
					change := next()
					var head view.Head
					if change.Head == nil {
						continue
					}
					if err := json.Unmarshal(change.Head, &head); err != nil {
						t.Fatal(err)
					}
					if (head.Away != nil) == away {
						return head.Away
					}
				}
			}
			until(false)
			refuses.Store(true)
			if refusal := until(true); !strings.Contains(refusal.Message, "list vippools at "+api.URL) || refusal.Seen.IsZero() {
				t.Errorf("the page shows %+v", refusal)
			}
			refuses.Store(false)
			until(false)
			cancel()
			if code := <-ended; code != exitOK {
				t.Errorf("exit code %d after it was interrupted", code)
			}
		})
	}
}
