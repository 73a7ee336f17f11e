// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package conformance

import (
	"maps"
	"slices"
)

// expectedFailures are tests that do not pass yet, each with the reason. They are not run.
var expectedFailures = map[string]string{
	"GatewayStaticAddresses": notUsable,

	"TCPRouteInvalidCrossNamespaceBackendRef": noAgent,
	"TCPRouteMultipleRoutesAttachment":        noAgent,
	"TCPRouteParentRefAttachAll":              noAgent,
	"TCPRouteParentRefPortAndSectionName":     noAgent,
	"TCPRouteReferenceGrant":                  noAgent,
	"TCPRouteWeightedRouting":                 noAgent,
	"UDPRoute":                                noAgent,
	"UDPRouteInvalidCrossNamespaceBackendRef": noAgent,
	"UDPRouteMultipleRoutesAttachment":        noAgent,
	"UDPRouteParentRefAttachAllListeners":     noAgent,
	"UDPRouteParentRefPortAndSectionName":     noAgent,
	"UDPRouteReferenceGrant":                  noAgent,
	"UDPRouteWeightedRouting":                 noAgent,
}

const (
	noAgent   = "TCPRoute and UDPRoute reach no agent"
	notUsable = "an address that no pool has is told as AddressNotAssigned"
)

// skipped are the names of the tests that are not run.
func skipped() []string { return slices.Sorted(maps.Keys(expectedFailures)) }
