// SPDX-License-Identifier: Apache-2.0

package main

import "os"

type identity struct {
	Pod  string `json:"pod"`
	Node string `json:"node"`
}

// ownIdentity reads POD and NODE of the downward API. POD defaults to the host name.
func ownIdentity() identity {
	id := identity{Pod: os.Getenv("POD"), Node: os.Getenv("NODE")}
	if id.Pod == "" {
		id.Pod, _ = os.Hostname()
	}
	return id
}

// answer is the body of GET /. Client and Local are address:port of the server's socket.
type answer struct {
	identity
	Client string `json:"client"`
	Local  string `json:"local"`
	// Forwarded is the header X-Forwarded-For.
	Forwarded string `json:"forwarded,omitempty"`
}
