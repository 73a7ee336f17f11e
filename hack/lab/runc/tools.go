// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins the OCI runtime that runs on the lab's nodes.
package tools

import _ "github.com/opencontainers/runc"
