// SPDX-License-Identifier: Apache-2.0

// Package proxy is the data plane of layer 7: it listens, ends TLS, finds the rule for a
// request, and balances requests over the endpoints of a backend.
//
//	Update ──► Apply ──► table ──► one atomic pointer
//	                                   │
//	socket ──► server ──► handler ─────┴──► ReverseProxy ──► upstream ──► endpoint
//	              └──► tunnel (TLS passthrough and terminate) ──┘
//
// A table does not change. A request keeps the table that it began with, and what a new
// version leaves as it is stays the same object, with its connections and its state.
// The proxy knows gateway/resource only: no API server, no Secrets.
package proxy
