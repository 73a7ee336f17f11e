// SPDX-License-Identifier: Apache-2.0

// Package hostile holds a proxy to one rule: the request that a backend parses is the request that
// was routed. testdata/cases.yaml has requests of hostile clients, each sent over HTTP/1.1 in the
// clear and over TLS, and over HTTP/2. TestRandom draws others.
package hostile
