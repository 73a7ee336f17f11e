// SPDX-License-Identifier: Apache-2.0

// Package distribution transports configurations from the controller to the proxies over incremental xDS
// (Envoy's delta protocol) with a single custom resource type. A response contains all changes between two
// versions, so that a proxy switches atomically.
//
// This package implements the proxy's side, package server the controller's side. Both are independent of
// Kubernetes.
package distribution

const (
	// TypeURL is the only served type, gateway/resource.Resource.
	TypeURL = "type.googleapis.com/millrace.gateway.v1.Resource"
	// MaxRequestBytes limits a request. The first one lists the proxy's versions, under 150 bytes each.
	MaxRequestBytes = 16 << 20
	// MaxResponseBytes limits a response. The first one has all resources; 5,000 certificates take 25 MB.
	MaxResponseBytes = 512 << 20
)
