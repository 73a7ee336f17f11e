// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins the version of Calico for the lab.
package tools

import (
	_ "github.com/projectcalico/calico/cni-plugin/cmd/calico"
	_ "github.com/projectcalico/calico/node/cmd/calico-node"
)
