// SPDX-License-Identifier: Apache-2.0

// Package resource defines the resources of a proxy's configuration. See resource.proto.
package resource

//go:generate go run ../../hack/protogen resource.proto
