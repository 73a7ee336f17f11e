// SPDX-License-Identifier: Apache-2.0

// Package distribution distributes configurations from the controller to the proxies over incremental xDS
// (Envoy's delta protocol) with a single custom resource type. A response contains all changes between two
// versions, so that a proxy applies them atomically.
//
// This package implements the client in the proxy, package server the server in the controller. Both are
// independent of Kubernetes.
package distribution

const (
	// TypeURL is the URL of the only resource type, gateway/resource.Resource.
	TypeURL = "type.googleapis.com/millrace.gateway.v1.Resource"
	// MaxRequestBytes limits the size of a request. The first request lists the versions of the proxy's
	// resources, each below 150 bytes.
	MaxRequestBytes = 16 << 20
	// MaxResponseBytes limits the size of a response. The first response contains all resources; 5,000
	// certificates take 25 MB.
	MaxResponseBytes = 512 << 20
)
