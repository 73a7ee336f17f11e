// SPDX-License-Identifier: Apache-2.0

// Package webreport defines the report of `echo web`.
package webreport

// The kinds of requests. A stream's message with its answer is one request.
const (
	// Kept are HTTP/1.1 requests on persistent connections, Fresh on new ones.
	Kept  = "http1"
	Fresh = "http1-new"
	HTTP2 = "http2"
	// GRPC and WebSocket are messages of persistent streams.
	GRPC      = "grpc"
	WebSocket = "websocket"
)

// Report is one line of output of `echo web`: requests due since the previous report.
type Report struct {
	// From and To are the period in seconds since the start of the client.
	From  float64         `json:"from"`
	To    float64         `json:"to"`
	Kinds map[string]Kind `json:"kinds"`
}

// Kind is the result of one kind of requests.
type Kind struct {
	Requests      int     `json:"requests"`
	Failed        int     `json:"failed"`
	FirstFailures []Event `json:"firstFailures"`
	// Reopened counts ended and reopened streams, Resent their unanswered messages, which were repeated.
	Reopened  int            `json:"reopened"`
	Resent    int            `json:"resent"`
	FirstEnds []Event        `json:"firstEnds"`
	PerPod    map[string]int `json:"perPod"`
	// P50, P99 and Max are in milliseconds from the time when the request was due.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Event is an error, in seconds since the start of the client.
type Event struct {
	At    float64 `json:"at"`
	Error string  `json:"error"`
}
