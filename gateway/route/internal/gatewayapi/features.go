// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/gateway-api/pkg/consts"
	"sigs.k8s.io/gateway-api/pkg/features"
)

// supported contains the features of Gateway API that are listed in the status of GatewayClasses and in
// conformance reports. Each has a conformance test if the suite has one.
var supported = []features.FeatureName{
	features.SupportGateway,
	features.SupportGatewayAddressEmpty,
	features.SupportGatewayBackendClientCertificate,
	features.SupportGatewayFrontendClientCertificateValidation,
	features.SupportGatewayFrontendClientCertificateValidationInsecureFallback,
	features.SupportGatewayHTTPListenerIsolation,
	features.SupportGatewayHTTPSListenerDetectMisdirectedRequests,
	features.SupportGatewayInfrastructure,
	features.SupportGatewayPort8080,
	features.SupportGatewayStaticAddresses,
	features.SupportListenerSet,
	features.SupportReferenceGrant,

	features.SupportHTTPRoute,
	features.SupportHTTPRoute303RedirectStatusCode,
	features.SupportHTTPRoute307RedirectStatusCode,
	features.SupportHTTPRoute308RedirectStatusCode,
	features.SupportHTTPRouteBackendProtocolH2C,
	features.SupportHTTPRouteBackendProtocolWebSocket,
	features.SupportHTTPRouteBackendRequestHeaderModification,
	features.SupportHTTPRouteBackendTimeout,
	features.SupportHTTPRouteCORS,
	features.SupportHTTPRouteDestinationPortMatching,
	features.SupportHTTPRouteHostRewrite,
	features.SupportHTTPRouteMethodMatching,
	features.SupportHTTPRouteNamedRouteRule,
	features.SupportHTTPRouteParentRefPort,
	features.SupportHTTPRoutePathRedirect,
	features.SupportHTTPRoutePathRewrite,
	features.SupportHTTPRoutePortRedirect,
	features.SupportHTTPRouteQueryParamMatching,
	features.SupportHTTPRouteRequestMirror,
	features.SupportHTTPRouteRequestMultipleMirrors,
	features.SupportHTTPRouteRequestPercentageMirror,
	features.SupportHTTPRouteRequestTimeout,
	features.SupportHTTPRouteResponseHeaderModification,
	features.SupportHTTPRouteRetry,
	features.SupportHTTPRouteRetryBackendTimeout,
	features.SupportHTTPRouteRetryConnectionError,
	features.SupportHTTPRouteSchemeRedirect,

	features.SupportGRPCRoute,
	features.SupportGRPCRouteNamedRouteRule,

	features.SupportTLSRoute,
	features.SupportTLSRouteModeMixed,
	features.SupportTLSRouteModeTerminate,

	features.SupportTCPRoute,
	features.SupportUDPRoute,

	features.SupportBackendTLSPolicy,
	features.SupportBackendTLSPolicySANValidation,
}

// Features returns the supported features of Gateway API, sorted.
func Features() []features.FeatureName {
	return slices.Sorted(slices.Values(supported))
}

func supportedFeatures() []gatewayv1.SupportedFeature {
	var found []gatewayv1.SupportedFeature
	for _, name := range Features() {
		found = append(found, gatewayv1.SupportedFeature{Name: gatewayv1.FeatureName(name)})
	}
	return found
}

// versionCondition returns the condition SupportedVersion: whether the installed CRDs of Gateway API have the
// minor version that this controller implements. CRDs of other versions are used as far as they can be
// decoded.
func versionCondition(installed string, generation int64) metav1.Condition {
	made := utilversion.MustParseSemantic(consts.BundleVersion)
	found, err := utilversion.ParseSemantic(installed)
	message := ""
	switch {
	case installed == "":
		message = fmt.Sprintf("the CRD of GatewayClass has no version annotation: %s is supported", consts.BundleVersion)
	case err != nil:
		message = fmt.Sprintf("the CRDs have the invalid version %q: %s is supported", installed, consts.BundleVersion)
	case found.Major() != made.Major() || found.Minor() != made.Minor():
		message = fmt.Sprintf("the CRDs are of version %s: v%d.%d is supported", installed, made.Major(), made.Minor())
	}
	if message != "" {
		return condition(gatewayv1.GatewayClassConditionStatusSupportedVersion, false,
			gatewayv1.GatewayClassReasonUnsupportedVersion, message, generation)
	}
	return condition(gatewayv1.GatewayClassConditionStatusSupportedVersion, true,
		gatewayv1.GatewayClassReasonSupportedVersion, "", generation)
}
