// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package conformance

import (
	"os"
	"path/filepath"
	"testing"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/conformance"
	confv1 "sigs.k8s.io/gateway-api/conformance/apis/v1"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// profiles are the claimed conformance profiles.
var profiles = []suite.ConformanceProfileName{
	suite.GatewayHTTPConformanceProfileName,
	suite.GatewayGRPCConformanceProfileName,
	suite.GatewayTLSConformanceProfileName,
	suite.GatewayTCPConformanceProfileName,
	suite.GatewayUDPConformanceProfileName,
}

// TestConformance runs the tests of the GatewayClass's supported features. Flags of the suite select
// others, such as -run-test=HTTPRouteWeight.
func TestConformance(t *testing.T) {
	options := conformance.DefaultOptions(t)
	options.GatewayClassName = "millrace"
	options.ConformanceProfiles = profiles
	options.SkipTests = append(options.SkipTests, skipped()...)
	options.Implementation = confv1.Implementation{
		Organization: "millrace-lb", Project: "millrace", URL: "https://github.com/millrace-lb/millrace", Version: "dev",
		Contact: []string{"https://github.com/millrace-lb/millrace/issues"},
	}
	options.ReportOutputPath = filepath.Join(os.Getenv(onClient), "dist", "conformance", "report.yaml")
	// The first is in the lab's pool, the second in no pool.
	options.UsableNetworkAddresses = []gatewayv1.GatewaySpecAddress{address("203.0.113.190")}
	options.UnusableNetworkAddresses = []gatewayv1.GatewaySpecAddress{address("203.0.113.250")}
	// The lab is stopped after the tests.
	options.CleanupBaseResources = false
	// The tests poll, so client-side rate limits are disabled.
	options.RestConfig.QPS = -1
	conformance.RunConformanceWithOptions(t, options)
}

func address(value string) gatewayv1.GatewaySpecAddress {
	kind := gatewayv1.IPAddressType
	return gatewayv1.GatewaySpecAddress{Type: &kind, Value: value}
}
