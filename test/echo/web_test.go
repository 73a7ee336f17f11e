// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace-lb/millrace/test/echo/webreport"
)

type visit struct {
	t       *testing.T
	stdin   *io.PipeWriter
	reports *json.Decoder
	ended   chan error
}

// newVisit waits for the first report, which includes requests on a busy machine.
func newVisit(t *testing.T, server *httptest.Server, args ...string) *visit {
	t.Helper()
	stdin, stdinWriter := io.Pipe()
	stdout, stdoutWriter := io.Pipe()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	// The certificate of httptest is for example.com.
	args = append([]string{"--to", server.Listener.Addr().String(), "--host", "example.com", "--grpc-host", "example.com", "--ca", string(ca)}, args...)
	v := &visit{t: t, stdin: stdinWriter, reports: json.NewDecoder(stdout), ended: make(chan error, 1)}
	go func() {
		err := webUntil(t.Context(), args, stdin, stdoutWriter)
		stdoutWriter.CloseWithError(err)
		v.ended <- err
	}()
	v.report()
	return v
}

func (v *visit) report() webreport.Report {
	v.t.Helper()
	var report webreport.Report
	if err := v.reports.Decode(&report); err != nil {
		v.t.Fatalf("decode the report: %v", err)
	}
	return report
}

func (v *visit) check() webreport.Report {
	v.t.Helper()
	fmt.Fprintln(v.stdin, "check")
	return v.report()
}

func (v *visit) until(enough func(webreport.Kind) bool) map[string]webreport.Kind {
	v.t.Helper()
	sum := map[string]webreport.Kind{}
	for deadline := time.Now().Add(20 * time.Second); ; {
		for name, kind := range v.check().Kinds {
			all := sum[name]
			all.Requests, all.Failed = all.Requests+kind.Requests, all.Failed+kind.Failed
			all.Reopened, all.Resent = all.Reopened+kind.Reopened, all.Resent+kind.Resent
			all.FirstFailures = append(all.FirstFailures, kind.FirstFailures...)
			all.FirstEnds = append(all.FirstEnds, kind.FirstEnds...)
			if all.PerPod == nil {
				all.PerPod = map[string]int{}
			}
			for pod, count := range kind.PerPod {
				all.PerPod[pod] += count
			}
			sum[name] = all
		}
		missing := slices.DeleteFunc(slices.Clone(kinds), func(name string) bool { return enough(sum[name]) })
		if len(missing) == 0 {
			return sum
		}
		if time.Now().After(deadline) {
			v.t.Fatalf("timeout: missing %v: %+v", missing, sum)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (v *visit) end() webreport.Report {
	v.t.Helper()
	v.stdin.Close()
	report := v.report()
	if err := <-v.ended; err != nil {
		v.t.Error(err)
	}
	return report
}

func startWeb(t *testing.T, handler http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

var kinds = []string{webreport.Kept, webreport.Fresh, webreport.HTTP2, webreport.GRPC, webreport.WebSocket}

func TestWebCountsFailures(t *testing.T) {
	kept := newSite(identity{Pod: "p1"})
	broken := make(chan struct{})
	server := startWeb(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-broken:
			http.Error(w, "broken", http.StatusServiceUnavailable)
		default:
			kept.ServeHTTP(w, r)
		}
	}))
	v := newVisit(t, server, "--rate", "20", "--streams", "2")
	close(broken)
	v.check()
	kept.streams.close()
	for name, kind := range v.until(func(kind webreport.Kind) bool { return kind.Failed > 0 }) {
		// A stream is reopened until the request's timeout, so its ends contain the error.
		why := fmt.Sprint(kind.FirstFailures[0].Error, kind.FirstEnds)
		if !strings.Contains(why, "503") {
			t.Errorf("%s: %+v; want 503", name, kind)
		}
	}
	v.end()
}
