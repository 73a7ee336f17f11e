// SPDX-License-Identifier: Apache-2.0

// Package proxy implements the layer-7 data plane: it accepts connections, terminates TLS, matches requests
// to rules, and balances them over the endpoints of a backend.
//
//	Update ──► Apply ──► table ──► one atomic pointer
//	                                   │
//	socket ──► server ──► handler ─────┴──► forward ──► upstream ──► endpoint
//	              └──► tunnel (TLS passthrough and terminate) ──┘
//
// The server has two parts with the same handler: h1server reads short HTTP/1.1 requests, and hands connections with
// HTTP/2 or any other request over to net/http.
//
// A table is immutable, and a request uses the same table until its end. Unchanged resources keep their
// objects across tables, including connections and state. The proxy depends on gateway/resource only,
// neither on the API server nor on Secrets.
package proxy
