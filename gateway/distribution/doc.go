// SPDX-License-Identifier: Apache-2.0

// Package distribution brings the configuration of proxies from the controller to them:
// incremental xDS (Envoy's delta protocol) with one resource type of our own. One response
// holds all that changed between two versions, so a proxy switches once.
//
// This is the proxy's end; package server is the controller's. Neither knows Kubernetes.
package distribution

const (
	// TypeURL is the one type that is served: gateway/resource.Resource.
	TypeURL = "type.googleapis.com/millrace.gateway.v1.Resource"
	// MaxRequestBytes bounds what a proxy sends. At its start it tells which versions it
	// has: below 150 bytes a resource.
	MaxRequestBytes = 16 << 20
	// MaxResponseBytes bounds what a proxy reads. The first response holds everything,
	// 5,000 certificates being 25 MB.
	MaxResponseBytes = 512 << 20
)
