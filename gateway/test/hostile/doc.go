// SPDX-License-Identifier: Apache-2.0

// Package hostile holds a proxy to one rule: the request that a backend parses is the request that
// was routed. testdata/cases.yaml has requests of hostile clients, each sent over HTTP/1.1 in the
// clear and over TLS, and over HTTP/2. TestRandom draws others. Backends are Go's servers of HTTP/1.1,
// of HTTP/1.1 over TLS, and of HTTP/2 in the clear; with -programs also nginx, HAProxy, Node and
// gunicorn (hack/prerequisites.sh --hostile). TestPoisoning has a backend that answers what nobody
// asked.
package hostile
