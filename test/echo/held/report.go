// SPDX-License-Identifier: Apache-2.0

// Package held is what `echo hold` tells of the flows that it holds.
package held

// Report is what `echo hold` prints, in one line, at the start, for each check and at
// the end.
type Report struct {
	Seconds float64 `json:"seconds"`
	// Flows is how many were asked for, Live how many are not broken.
	Flows int `json:"flows"`
	Live  int `json:"live"`
	// Requests and Lost count since the start. A lost request is a datagram without
	// an answer; TCP loses none.
	Requests int64 `json:"requests"`
	Lost     int64 `json:"lost"`
	// Silent are UDP flows that did not get an answer at this check.
	Silent int `json:"silent"`
	// SilentPerPath counts those of them that were asked by "OWN ADDRESS to VIP"; the
	// others had to wait for these.
	SilentPerPath map[string]int `json:"silentPerPath,omitempty"`
	// LongestGap is the longest time in seconds that a flow which lives waited for an
	// answer since the last report.
	LongestGap float64 `json:"longestGap"`
	// P50 and P99 are quantiles of how long TCP requests waited for their answers since the last
	// report, in milliseconds.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	// Broken are all connections that broke since the start.
	Broken []BrokenFlow `json:"broken"`
	// Moved counts the UDP flows whose pod changed since the last report.
	Moved []Movement `json:"moved"`
	// PerPod counts the flows that live by the pod that answered last.
	PerPod map[string]int `json:"perPod"`
	// FirstErrors are the first few, as text.
	FirstErrors []string `json:"firstErrors"`
}

// BrokenFlow is a connection that ended before its time.
type BrokenFlow struct {
	Local  string `json:"local"`
	Remote string `json:"remote"`
	// Pod is the one that answered, empty where none ever did.
	Pod      string `json:"pod"`
	Requests int    `json:"requests"`
	// At is in seconds since the start.
	At    float64 `json:"at"`
	Error string  `json:"error"`
}

// Movement is a number of flows that one pod answered first and then another.
type Movement struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Flows int    `json:"flows"`
}
