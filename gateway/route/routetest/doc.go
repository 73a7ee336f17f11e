// SPDX-License-Identifier: Apache-2.0

// Package routetest provides helpers for tests of package route and its users. It parses objects from YAML,
// generates certificates, and matches requests against a configuration.
package routetest
