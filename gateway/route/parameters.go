// SPDX-License-Identifier: Apache-2.0

package route

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

// Keys of the ConfigMap that an IngressClass, a GatewayClass or a Gateway references as its parameters.
const (
	// ParameterReplicas is the minimum number of proxies.
	ParameterReplicas = "replicas"
	// ParameterMaxReplicas is the maximum number of proxies; above replicas it follows the load.
	ParameterMaxReplicas = "maxReplicas"
	// ParameterPool and ParameterAddresses are the annotations millrace.io/pool and millrace.io/addresses
	// of the proxies' Service.
	ParameterPool      = "pool"
	ParameterAddresses = "addresses"
	// ParameterTrustedHops is the number of proxies in front whose X-Forwarded-For entries are trusted.
	ParameterTrustedHops = "trustedHops"
	// ParameterTLSPolicy is modern, intermediate or old: the TLS versions and cipher suites for clients,
	// as named by Mozilla's "Server Side TLS".
	ParameterTLSPolicy = "tlsPolicy"
	// ParameterDrainPeriod is how long established connections to a backend that was removed from a
	// TCPRoute or UDPRoute are kept, such as "30m".
	ParameterDrainPeriod = "drainPeriod"
	// ParameterResponseTimeout is the timeout for response headers of a backend, such as "5m".
	ParameterResponseTimeout = "responseTimeout"
	// ParameterAccessLog "true" logs each request.
	ParameterAccessLog = "accessLog"
	// ParameterRouteMetrics "true" adds metrics for each rule.
	ParameterRouteMetrics = "routeMetrics"
	// ParameterPullSecrets, ParameterNodeSelector and ParameterTolerations are imagePullSecrets,
	// nodeSelector and tolerations of the proxies' pods, in the YAML of a pod's spec.
	ParameterPullSecrets  = "imagePullSecrets"
	ParameterNodeSelector = "nodeSelector"
	ParameterTolerations  = "tolerations"
	// ParameterTracingEndpoint is a collector of spans, http://HOST:PORT.
	ParameterTracingEndpoint = "tracingEndpoint"
	// ParameterTracingRatio is the ratio of sampled requests, from 0 to 1.
	ParameterTracingRatio = "tracingRatio"

	// ParameterDefaultBackend serves requests that no rule matches: "namespace/service:port". This
	// parameter and the following ones are for an IngressClass only.
	ParameterDefaultBackend = "defaultBackend"
	// ParameterDefaultCertificate is the certificate of hosts without a Secret: "namespace/secret".
	ParameterDefaultCertificate = "defaultCertificate"
	// ParameterSSLRedirect is the default of the annotation.
	ParameterSSLRedirect = "sslRedirect"
	// ParameterDedicatedVIP is the default of the annotation.
	ParameterDedicatedVIP = "dedicatedVIP"
	// ParameterAnnotations "ingress-nginx" enables the annotations of ingress-nginx.
	ParameterAnnotations = "annotations"
	// ParameterHostOwnership is Strict or InterNamespaceAllowed: whether namespaces may share hosts.
	ParameterHostOwnership = "hostOwnership"
)

// Parameters are the settings of the proxies of a class or a Gateway.
type Parameters struct {
	Replicas, MaxReplicas        int32
	Pool, Addresses              string
	TrustedHops                  uint32
	TLSPolicy                    resource.Listener_TLSPolicy
	DrainPeriod, ResponseTimeout time.Duration
	AccessLog, RouteMetrics      bool
	PullSecrets                  []corev1.LocalObjectReference
	NodeSelector                 map[string]string
	Tolerations                  []corev1.Toleration
	// An empty TracingEndpoint disables tracing; an empty TracingRatio is the proxy's default.
	TracingEndpoint, TracingRatio string
}

const maxPeriod = 7 * 24 * time.Hour

type classParameters struct {
	Parameters
	defaultBackend     types.NamespacedName
	defaultBackendPort string
	defaultCertificate types.NamespacedName
	sslRedirect        bool
	dedicatedVIP       bool
	annotations        annotationsOf
	sharing            ownership.Sharing
	isSharingSet       bool
}

// hostOwnership defaults to shared hosts in classes with ingress-nginx annotations, like ingress-nginx.
func (p *classParameters) hostOwnership() ownership.Sharing {
	if !p.isSharingSet && p.annotations == annotationsOfNginx {
		return ownership.InterNamespaceAllowed
	}
	return p.sharing
}

const valueOfNginx = "ingress-nginx"

type annotationsOf int

const (
	annotationsOurs annotationsOf = iota
	annotationsOfNginx
	// annotationsUnknown is the value of invalid parameters.
	annotationsUnknown
)

type parameterProblem struct{ key, reason, message string }

// parseParameters replaces invalid parameters by defaults.
func parseParameters(configMap *corev1.ConfigMap, ingress bool) (classParameters, []parameterProblem) {
	var found classParameters
	var problems []parameterProblem
	for _, name := range slices.Sorted(maps.Keys(configMap.Data)) {
		text := strings.TrimSpace(configMap.Data[name])
		known, err := found.set(name, text)
		if !known && ingress {
			known, err = found.setIngress(name, text)
		}
		switch {
		case !known:
			problems = append(problems, parameterProblem{name, ReasonUnsupported, "unknown parameter"})
		case err != nil:
			problems = append(problems, parameterProblem{name, ReasonInvalid, err.Error()})
		}
	}
	if found.MaxReplicas != 0 && found.MaxReplicas < found.Replicas {
		problems = append(problems, parameterProblem{ParameterMaxReplicas, ReasonInvalid,
			fmt.Sprintf("%d is less than %s, %d", found.MaxReplicas, ParameterReplicas, found.Replicas)})
		found.MaxReplicas = 0
	}
	return found, problems
}

func (p *classParameters) set(name, text string) (known bool, err error) {
	switch name {
	case ParameterReplicas:
		err = parseNumber(text, 1, 1000, &p.Replicas)
	case ParameterMaxReplicas:
		err = parseNumber(text, 1, 1000, &p.MaxReplicas)
	case ParameterTrustedHops:
		var hops int32
		err = parseNumber(text, 0, 100, &hops)
		p.TrustedHops = uint32(hops)
	case ParameterTLSPolicy:
		err = parseTLSPolicy(text, &p.TLSPolicy)
	case ParameterDrainPeriod:
		err = parsePeriod(text, &p.DrainPeriod)
	case ParameterResponseTimeout:
		err = parsePeriod(text, &p.ResponseTimeout)
	case ParameterAccessLog:
		err = parseBool(text, &p.AccessLog)
	case ParameterRouteMetrics:
		err = parseBool(text, &p.RouteMetrics)
	case ParameterTracingEndpoint:
		err = parseCollector(text, &p.TracingEndpoint)
	case ParameterTracingRatio:
		err = parseRatio(text, &p.TracingRatio)
	case ParameterPool:
		p.Pool = text
	case ParameterAddresses:
		p.Addresses = text
	default:
		return p.setPlacement(name, text)
	}
	return true, err
}

var tlsPolicies = map[string]resource.Listener_TLSPolicy{
	"modern": resource.Listener_MODERN, "intermediate": resource.Listener_INTERMEDIATE, "old": resource.Listener_OLD,
}

func parseTLSPolicy(text string, into *resource.Listener_TLSPolicy) error {
	policy, known := tlsPolicies[text]
	if !known {
		return fmt.Errorf("%q is not modern, intermediate or old", text)
	}
	*into = policy
	return nil
}

func parsePeriod(text string, to *time.Duration) error {
	period, err := time.ParseDuration(text)
	if err != nil || period < time.Second || period > maxPeriod {
		return fmt.Errorf("%q is not a duration from 1s to %s", text, maxPeriod)
	}
	*to = period
	return nil
}

func (p *classParameters) setIngress(name, text string) (known bool, err error) {
	switch name {
	case ParameterDefaultBackend:
		service, port, found := strings.Cut(text, ":")
		if !found || port == "" {
			return true, fmt.Errorf("%q is not namespace/service:port", text)
		}
		p.defaultBackendPort = port
		err = parseKey(service, &p.defaultBackend)
	case ParameterDefaultCertificate:
		err = parseKey(text, &p.defaultCertificate)
	case ParameterSSLRedirect:
		err = parseBool(text, &p.sslRedirect)
	case ParameterDedicatedVIP:
		err = parseBool(text, &p.dedicatedVIP)
	case ParameterAnnotations:
		err = p.setAnnotations(text)
	case ParameterHostOwnership:
		err = p.setHostOwnership(text)
	default:
		return false, nil
	}
	return true, err
}

func (p *classParameters) setAnnotations(text string) error {
	switch text {
	case "none", "":
		p.annotations = annotationsOurs
	case valueOfNginx:
		p.annotations = annotationsOfNginx
	default:
		p.annotations = annotationsUnknown
		return fmt.Errorf("%q is neither ingress-nginx nor none: Ingresses with annotations of ingress-nginx that restrict clients get 500", text)
	}
	return nil
}

func (p *classParameters) setHostOwnership(text string) error {
	p.sharing, p.isSharingSet = ownership.Strict, true
	switch text {
	case "Strict":
	case "InterNamespaceAllowed":
		p.sharing = ownership.InterNamespaceAllowed
	default:
		return fmt.Errorf("%q is neither Strict nor InterNamespaceAllowed: Strict is used", text)
	}
	return nil
}

func parseNumber(text string, lowest, highest int64, into *int32) error {
	number, err := strconv.ParseInt(text, 10, 32)
	if err != nil || number < lowest || number > highest {
		return fmt.Errorf("%q is not a number from %d to %d", text, lowest, highest)
	}
	*into = int32(number)
	return nil
}

func parseCollector(text string, into *string) error {
	at, err := url.Parse(text)
	if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Port() == "" || strings.Trim(at.Path, "/") != "" || at.User != nil {
		return fmt.Errorf("%q is not http://HOST:PORT or https://HOST:PORT", text)
	}
	*into = text
	return nil
}

func parseRatio(text string, into *string) error {
	ratio, err := strconv.ParseFloat(text, 64)
	if err != nil || !(ratio >= 0 && ratio <= 1) {
		return fmt.Errorf("%q is not a number from 0 to 1", text)
	}
	*into = text
	return nil
}

func parseBool(text string, into *bool) error {
	switch text {
	case "true":
		*into = true
	case "false":
		*into = false
	default:
		return fmt.Errorf("%q is neither true nor false", text)
	}
	return nil
}

func parseKey(text string, into *types.NamespacedName) error {
	namespace, name, found := strings.Cut(text, "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("%q is not namespace/name", text)
	}
	*into = types.NamespacedName{Namespace: namespace, Name: name}
	return nil
}
