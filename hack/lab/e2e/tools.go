// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package e2e pins the programs that the end-to-end tests run in pods.
package e2e

import _ "k8s.io/kubernetes/test/images/agnhost"
