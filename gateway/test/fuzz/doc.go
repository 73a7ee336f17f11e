// SPDX-License-Identifier: Apache-2.0

// Package fuzz tests that the request that a backend parses is the request that the proxy has routed.
// testdata/cases.yaml contains requests of malicious clients, each sent over HTTP/1.1 with and without
// TLS and over HTTP/2. TestRandom generates others. Backends are Go's servers of HTTP/1.1 with and
// without TLS and of HTTP/2 without TLS; with -programs also nginx, HAProxy, Node and gunicorn
// (hack/prerequisites.sh --hostile). TestPoisoning has a backend that sends unsolicited responses.
package fuzz
