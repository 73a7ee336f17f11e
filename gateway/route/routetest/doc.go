// SPDX-License-Identifier: Apache-2.0

// Package routetest helps to test package route and what uses it: objects from YAML, made
// certificates, and a plain matcher that says what a configuration does with a request.
package routetest
