// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins the version of Cilium for the lab.
package tools

import (
	_ "github.com/cilium/cilium/daemon"
	_ "github.com/cilium/cilium/plugins/cilium-cni"
)
