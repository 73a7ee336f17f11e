// SPDX-License-Identifier: Apache-2.0

// Package routetest supports tests of package route and its users: it parses objects from YAML, generates
// certificates, and matches requests against a configuration.
package routetest
