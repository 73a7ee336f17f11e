// SPDX-License-Identifier: Apache-2.0

package harness

import _ "embed"

// Manifests of the demo and the tests.
var (
	// Network is the pool, its advertisement and the peers.
	Network = Pool + "---\n" + Peers
	// Pool has the addresses that Services get, and has them announced.
	//go:embed manifests/pool.yaml
	Pool string
	// Peers has a session with router1 for each family.
	//go:embed manifests/peers.yaml
	Peers string
	// Echo has the Deployment of six pods and its Service.
	//go:embed manifests/echo.yaml
	Echo string
	// EchoLocal has a Service of the same pods with traffic policy Local.
	//go:embed manifests/echo-local.yaml
	EchoLocal string
	// Held has the Deployment and the Service whose connections are held.
	//go:embed manifests/hold.yaml
	Held string
	// Ingress has two hosts that lead to the pods of Echo, with TLS.
	//go:embed manifests/ingress.yaml
	Ingress string
	// Shop has what the examples of docs/gateway.md lead to.
	//go:embed manifests/shop.yaml
	Shop string
	// Web has pods that serve requests and streams, and an Ingress of a class of its own.
	//go:embed manifests/web.yaml
	Web string
)
