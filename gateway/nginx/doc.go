// SPDX-License-Identifier: Apache-2.0

// Package nginx parses annotations of ingress-nginx into settings. It is pure and independent of their
// implementation.
package nginx
