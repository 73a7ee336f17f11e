// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const maxFirstErrors = 10

type report struct {
	Requests    int      `json:"requests"`
	Errors      int      `json:"errors"`
	FirstErrors []string `json:"firstErrors"`
	// PerPod and PerNode count answers, Clients the client addresses that the server saw.
	PerPod  map[string]int `json:"perPod"`
	PerNode map[string]int `json:"perNode"`
	Clients map[string]int `json:"clients"`
	// P50, P99 and Max are response times of successful requests in milliseconds, from the time when the
	// request was due.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
	// Gap is the longest period of failed requests in milliseconds, by due time. Failures more than a
	// second apart are in different periods.
	Gap     float64 `json:"gap"`
	Seconds float64 `json:"seconds"`
}

type recorder struct {
	start time.Time

	mu     sync.Mutex
	report report
	times  []time.Duration
	failed []time.Time
}

func newRecorder(start time.Time) *recorder {
	return &recorder{start: start, report: report{
		FirstErrors: []string{}, PerPod: map[string]int{}, PerNode: map[string]int{}, Clients: map[string]int{},
	}}
}

func (r *recorder) failure(at time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Requests++
	r.report.Errors++
	r.failed = append(r.failed, at)
	if len(r.report.FirstErrors) < maxFirstErrors {
		r.report.FirstErrors = append(r.report.FirstErrors, fmt.Sprintf("after %.3fs: %v", at.Sub(r.start).Seconds(), err))
	}
}

func (r *recorder) success(from answer, took time.Duration) {
	client := from.Client
	if address, err := netip.ParseAddrPort(client); err == nil {
		client = address.Addr().Unmap().String()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Requests++
	r.report.PerPod[from.Pod]++
	r.report.PerNode[from.Node]++
	r.report.Clients[client]++
	r.times = append(r.times, took)
}

// finish prints the report. It returns errFailed if there was an error or no request.
func (r *recorder) finish(stdout io.Writer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.Sort(r.times)
	r.report.P50, r.report.P99, r.report.Max = quantile(r.times, 0.5), quantile(r.times, 0.99), quantile(r.times, 1)
	r.report.Gap = float64(longestGap(r.failed).Microseconds()) / 1000
	r.report.Seconds = time.Since(r.start).Seconds()
	if err := printJSON(stdout, r.report); err != nil {
		return err
	}
	if r.report.Errors > 0 || r.report.Requests == 0 {
		return errFailed
	}
	return nil
}

// sameGap is the maximum distance of failures in one gap.
const sameGap = time.Second

func longestGap(failed []time.Time) (longest time.Duration) {
	slices.SortFunc(failed, time.Time.Compare)
	first := 0
	for i, at := range failed {
		if i > 0 && at.Sub(failed[i-1]) > sameGap {
			first = i
		}
		longest = max(longest, at.Sub(failed[first]))
	}
	return longest
}

// quantile returns the smallest of the sorted times that a share q does not exceed, in milliseconds.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	index := int(q*float64(len(sorted)) + 0.999999)
	index = min(max(index, 1), len(sorted))
	return float64(sorted[index-1].Microseconds()) / 1000
}

func printJSON(stdout io.Writer, value any) error {
	encoder := json.NewEncoder(stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
