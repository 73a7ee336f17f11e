// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools pins the OCI runtime that the lab's nodes run.
package tools

import _ "github.com/opencontainers/runc"
