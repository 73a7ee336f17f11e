// SPDX-License-Identifier: Apache-2.0

// Package nginx parses the annotations of ingress-nginx into settings, and reports unsupported and
// invalid annotations. It is pure and independent of the implementation of the settings.
package nginx
