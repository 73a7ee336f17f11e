// SPDX-License-Identifier: Apache-2.0

package main

import "os"

// identity names the pod and node that answer.
type identity struct {
	Pod  string `json:"pod"`
	Node string `json:"node"`
}

// ownIdentity reads POD and NODE, which the pod's manifest sets by the downward
// API. A pod's host name is its name otherwise.
func ownIdentity() identity {
	id := identity{Pod: os.Getenv("POD"), Node: os.Getenv("NODE")}
	if id.Pod == "" {
		// Without a host name the answer is empty, which a client sees.
		id.Pod, _ = os.Hostname()
	}
	return id
}

// answer is the body of GET /. Client and Local are address:port as the server's
// socket has them.
type answer struct {
	identity
	Client string `json:"client"`
	Local  string `json:"local"`
	// Forwarded is what a proxy says who the client is (X-Forwarded-For).
	Forwarded string `json:"forwarded,omitempty"`
}
