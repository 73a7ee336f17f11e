// SPDX-License-Identifier: Apache-2.0

// Package nginx parses annotations of ingress-nginx into settings. It is pure and does not depend on how the
// settings are implemented.
package nginx
