// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

func runJSON[T any](t *testing.T, run command, args ...string) (T, error) {
	t.Helper()
	var stdout bytes.Buffer
	runErr := run(t.Context(), args, &stdout)
	var value T
	if err := json.Unmarshal(stdout.Bytes(), &value); err != nil {
		t.Fatalf("%v: output %q: %v (%v)", args, stdout.String(), err, runErr)
	}
	return value, runErr
}

func TestLoadCountsErrors(t *testing.T) {
	var count atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch count.Add(1) % 4 {
		case 0:
			http.Error(w, "no", http.StatusServiceUnavailable)
		case 1:
			fmt.Fprint(w, "this is no JSON")
		default:
			writeAnswer(w, r, identity{Pod: "p", Node: "n"})
		}
	}))
	defer server.Close()
	got, err := runJSON[report](t, load, "--url", server.URL, "--requests", "100")
	if !errors.Is(err, errFailed) {
		t.Errorf("got %v, want errFailed", err)
	}
	if got.Requests != 100 || got.Errors != 50 || len(got.FirstErrors) != maxFirstErrors || got.PerPod["p"] != 50 {
		t.Errorf("report = %+v", got)
	}
}

func TestLaterWanted(t *testing.T) {
	for payload, want := range map[string]time.Duration{
		"later 2s": 2 * time.Second, "later 2s more": 2 * time.Second,
		"later": 0, "later 2": 0, "later -2s": 0, "later 6m": 0, "sooner 2s": 0, "": 0,
	} {
		if got, found := parseDelay([]byte(payload)); got != want && found || found != (want != 0) {
			t.Errorf("%q: %s, %t, want %s", payload, got, found, want)
		}
	}
}

func TestUDPWithoutAnswer(t *testing.T) {
	// Port 9 has no listener, so the kernel returns an error.
	got, err := runJSON[report](t, udp, "--to", "127.0.0.1:9", "--count", "3", "--timeout", "100ms")
	if !errors.Is(err, errFailed) || got.Errors != 3 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParseReply(t *testing.T) {
	got, err := parseReply("p n 198.51.100.1:5 a b", "a b")
	if want := (answer{identity: identity{Pod: "p", Node: "n"}, Client: "198.51.100.1:5"}); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, reply := range []string{"", "p n", "p n c", "p n c other"} {
		if _, err := parseReply(reply, "payload"); err == nil {
			t.Errorf("%q: want an error", reply)
		}
	}
}

func TestQuantile(t *testing.T) {
	times := make([]time.Duration, 100)
	for i := range times {
		times[i] = time.Duration(i+1) * time.Millisecond
	}
	for _, test := range []struct{ q, want float64 }{{0, 1}, {0.5, 50}, {0.99, 99}, {1, 100}} {
		if got := quantile(times, test.q); got != test.want {
			t.Errorf("quantile %v = %v, want %v", test.q, got, test.want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("quantile of an empty list = %v", got)
	}
	if got := quantile(times[:1], 0.99); got != 1 {
		t.Errorf("quantile of one value = %v", got)
	}
}
