// SPDX-License-Identifier: Apache-2.0

// Package holdreport defines the report of `echo hold`.
package holdreport

// Report is one line of output of `echo hold`: at the start, for each check and at the end.
type Report struct {
	Seconds float64 `json:"seconds"`
	// Flows is the number of requested flows, Live the number of intact ones.
	Flows int `json:"flows"`
	Live  int `json:"live"`
	// Requests and Lost count since the start. A lost request is an unanswered datagram; TCP loses none.
	Requests int64 `json:"requests"`
	Lost     int64 `json:"lost"`
	// Silent counts UDP flows without an answer at this check.
	Silent int `json:"silent"`
	// SilentPerPath counts the probed ones by "OWN ADDRESS to VIP"; others were queued behind them.
	SilentPerPath map[string]int `json:"silentPerPath,omitempty"`
	// LongestGap is the longest wait of an intact flow since the previous report, in seconds.
	LongestGap float64 `json:"longestGap"`
	// P50 and P99 are quantiles of TCP response times since the previous report, in milliseconds.
	P50    float64      `json:"p50"`
	P99    float64      `json:"p99"`
	Broken []BrokenFlow `json:"broken"`
	// Moved counts UDP flows whose pod changed since the previous report.
	Moved []Movement `json:"moved"`
	// PerPod counts intact flows by the pod of the latest answer.
	PerPod      map[string]int `json:"perPod"`
	FirstErrors []string       `json:"firstErrors"`
}

// BrokenFlow is a connection that ended unexpectedly.
type BrokenFlow struct {
	Local  string `json:"local"`
	Remote string `json:"remote"`
	// Pod is the pod of the latest answer, or empty.
	Pod      string  `json:"pod"`
	Requests int     `json:"requests"`
	At       float64 `json:"at"`
	Error    string  `json:"error"`
}

// Movement counts flows that moved from one pod to another.
type Movement struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Flows int    `json:"flows"`
}
