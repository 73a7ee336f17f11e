// SPDX-License-Identifier: Apache-2.0

// Package proxy implements the layer-7 data plane: it accepts connections, terminates TLS, matches requests
// to rules, and balances them over the endpoints of a backend.
//
//	Update ──► Apply ──► table ──► one atomic pointer
//	                                   │
//	socket ──► server ──► handler ─────┴──► forward ──► upstream ──► endpoint
//	              └──► tunnel (TLS passthrough and terminate) ──┘
//
// A table is immutable, and a request uses the same table until its end. Unchanged resources keep their
// objects across tables, including connections and state. The proxy depends on gateway/resource only,
// neither on the API server nor on Secrets.
package proxy
