// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins the CNI plugins that run on the lab's nodes.
package tools

import (
	_ "github.com/containernetworking/plugins/plugins/ipam/host-local"
	_ "github.com/containernetworking/plugins/plugins/main/loopback"
	_ "github.com/containernetworking/plugins/plugins/main/ptp"
)
