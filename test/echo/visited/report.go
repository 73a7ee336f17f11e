// SPDX-License-Identifier: Apache-2.0

// Package visited is what `echo web` tells of the requests that it makes.
package visited

// The kinds of requests. A message of a stream and its answer are one request.
const (
	// Kept are HTTP/1.1 requests on connections that are kept, Fresh each on a new one.
	Kept  = "http1"
	Fresh = "http1-new"
	HTTP2 = "http2"
	// GRPC and WebSocket are messages of streams that are kept open.
	GRPC      = "grpc"
	WebSocket = "websocket"
)

// Report is what `echo web` prints, in one line, for each check and at the end. It tells of the
// requests that were due since the last report.
type Report struct {
	// From and To are when that was, in seconds since the start of the client.
	From  float64         `json:"from"`
	To    float64         `json:"to"`
	Kinds map[string]Kind `json:"kinds"`
}

// Kind is what became of the requests of one kind.
type Kind struct {
	Requests int `json:"requests"`
	Failed   int `json:"failed"`
	// FirstFailures are the first few.
	FirstFailures []Event `json:"firstFailures"`
	// Reopened counts streams that ended and were opened again. Resent are the messages without
	// an answer at that time, which were sent again.
	Reopened int `json:"reopened"`
	Resent   int `json:"resent"`
	// FirstEnds are those of the first few such streams.
	FirstEnds []Event `json:"firstEnds"`
	// PerPod counts answers by the pod that gave them.
	PerPod map[string]int `json:"perPod"`
	// P50, P99 and Max are in milliseconds, since the request was due.
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Event is what went wrong, in seconds since the start of the client.
type Event struct {
	At    float64 `json:"at"`
	Error string  `json:"error"`
}
