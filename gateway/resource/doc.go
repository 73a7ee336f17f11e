// SPDX-License-Identifier: Apache-2.0

// Package resource is the configuration of a proxy as the controller serves it: its
// types, on the wire and in memory. See resource.proto.
package resource

//go:generate go run ../../hack/protogen resource.proto
