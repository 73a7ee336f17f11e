// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins Flannel and the CNI plugins that it uses.
package tools

import (
	_ "github.com/containernetworking/plugins/plugins/main/bridge"
	_ "github.com/containernetworking/plugins/plugins/meta/portmap"
	_ "github.com/flannel-io/flannel"
)
