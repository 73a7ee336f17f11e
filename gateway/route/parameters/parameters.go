// SPDX-License-Identifier: Apache-2.0

// Package parameters parses the ConfigMaps that an IngressClass, a GatewayClass or a Gateway references as
// its parameters. It is pure.
package parameters

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
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/ownership"
)

// Keys of the ConfigMap that an IngressClass, a GatewayClass or a Gateway references as its parameters.
const (
	// Replicas is the minimum number of proxies.
	Replicas = "replicas"
	// MaxReplicas is the maximum number of proxies; above replicas it follows the load.
	MaxReplicas = "maxReplicas"
	// Pool and Addresses are the annotations millrace.io/pool and millrace.io/addresses
	// of the proxies' Service.
	Pool      = "pool"
	Addresses = "addresses"
	// TrustedHops is the number of proxies in front whose X-Forwarded-For entries are trusted.
	TrustedHops = "trustedHops"
	// TLSPolicy is modern, intermediate or old: the TLS versions and cipher suites for clients,
	// as named by Mozilla's "Server Side TLS".
	TLSPolicy = "tlsPolicy"
	// DrainPeriod is how long established connections to a backend that was removed from a
	// TCPRoute or UDPRoute are kept, such as "30m".
	DrainPeriod = "drainPeriod"
	// ResponseTimeout is the timeout for response headers of a backend, such as "5m".
	ResponseTimeout = "responseTimeout"
	// AccessLog "true" logs each request.
	AccessLog = "accessLog"
	// RouteMetrics "true" adds metrics for each rule.
	RouteMetrics = "routeMetrics"
	// PullSecrets, NodeSelector and Tolerations are imagePullSecrets,
	// nodeSelector and tolerations of the proxies' pods, in the YAML of a pod's spec.
	PullSecrets  = "imagePullSecrets"
	NodeSelector = "nodeSelector"
	Tolerations  = "tolerations"
	// TracingEndpoint is a collector of spans, http://HOST:PORT.
	TracingEndpoint = "tracingEndpoint"
	// TracingRatio is the ratio of sampled requests, from 0 to 1.
	TracingRatio = "tracingRatio"

	// DefaultBackend serves requests that no rule matches: "namespace/service:port". This
	// parameter and the following ones are for an IngressClass only.
	DefaultBackend = "defaultBackend"
	// DefaultCertificate is the certificate of hosts without a Secret: "namespace/secret".
	DefaultCertificate = "defaultCertificate"
	// SSLRedirect is the default of the annotation millrace.io/ssl-redirect.
	SSLRedirect = "sslRedirect"
	// DedicatedVIP is the default of the annotation millrace.io/dedicated-vip.
	DedicatedVIP = "dedicatedVIP"
	// Annotations "ingress-nginx" enables the annotations of ingress-nginx.
	Annotations = "annotations"
	// HostOwnership is Strict or InterNamespaceAllowed: whether namespaces may share hosts.
	HostOwnership = "hostOwnership"
)

const maxPeriod = 7 * 24 * time.Hour

// Class contains the parameters of a class or a Gateway.
type Class struct {
	model.Parameters
	DefaultBackend     types.NamespacedName
	DefaultBackendPort string
	DefaultCertificate types.NamespacedName
	SslRedirect        bool
	DedicatedVIP       bool
	Annotations        AnnotationSet
	sharing            ownership.Sharing
	isSharingSet       bool
}

// HostOwnership returns whether namespaces can share hosts. Like ingress-nginx, classes with ingress-nginx
// annotations share hosts by default.
func (p *Class) HostOwnership() ownership.Sharing {
	if !p.isSharingSet && p.Annotations == IngressNginx {
		return ownership.InterNamespaceAllowed
	}
	return p.sharing
}

// IngressNginxValue is the value of parameter annotations that enables ingress-nginx annotations.
const IngressNginxValue = "ingress-nginx"

// AnnotationSet specifies which annotations of Ingresses are enabled.
type AnnotationSet int

// Values of AnnotationSet.
const (
	OwnAnnotations AnnotationSet = iota
	IngressNginx
	// UnknownAnnotations is used if the parameters are invalid.
	UnknownAnnotations
)

// Problem is an invalid or unknown parameter.
type Problem struct{ Key, Reason, Message string }

// Parse parses the parameters in a ConfigMap. Invalid parameters have their defaults. ingress is true for an
// IngressClass.
func Parse(configMap *corev1.ConfigMap, ingress bool) (Class, []Problem) {
	var found Class
	var problems []Problem
	for _, name := range slices.Sorted(maps.Keys(configMap.Data)) {
		text := strings.TrimSpace(configMap.Data[name])
		known, err := found.set(name, text)
		if !known && ingress {
			known, err = found.setIngress(name, text)
		}
		switch {
		case !known:
			problems = append(problems, Problem{name, model.ReasonUnsupported, "unknown parameter"})
		case err != nil:
			problems = append(problems, Problem{name, model.ReasonInvalid, err.Error()})
		}
	}
	if found.MaxReplicas != 0 && found.MaxReplicas < found.Replicas {
		problems = append(problems, Problem{MaxReplicas, model.ReasonInvalid,
			fmt.Sprintf("%d is less than %s, %d", found.MaxReplicas, Replicas, found.Replicas)})
		found.MaxReplicas = 0
	}
	return found, problems
}

func (p *Class) set(name, text string) (known bool, err error) {
	switch name {
	case Replicas:
		err = parseNumber(text, 1, 1000, &p.Replicas)
	case MaxReplicas:
		err = parseNumber(text, 1, 1000, &p.MaxReplicas)
	case TrustedHops:
		var hops int32
		err = parseNumber(text, 0, 100, &hops)
		p.TrustedHops = uint32(hops)
	case TLSPolicy:
		err = parseTLSPolicy(text, &p.TLSPolicy)
	case DrainPeriod:
		err = parsePeriod(text, &p.DrainPeriod)
	case ResponseTimeout:
		err = parsePeriod(text, &p.ResponseTimeout)
	case AccessLog:
		err = ParseBool(text, &p.AccessLog)
	case RouteMetrics:
		err = ParseBool(text, &p.RouteMetrics)
	case TracingEndpoint:
		err = parseCollector(text, &p.TracingEndpoint)
	case TracingRatio:
		err = parseRatio(text, &p.TracingRatio)
	case Pool:
		p.Pool = text
	case Addresses:
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

func (p *Class) setIngress(name, text string) (known bool, err error) {
	switch name {
	case DefaultBackend:
		service, port, found := strings.Cut(text, ":")
		if !found || port == "" {
			return true, fmt.Errorf("%q is not namespace/service:port", text)
		}
		p.DefaultBackendPort = port
		err = parseKey(service, &p.DefaultBackend)
	case DefaultCertificate:
		err = parseKey(text, &p.DefaultCertificate)
	case SSLRedirect:
		err = ParseBool(text, &p.SslRedirect)
	case DedicatedVIP:
		err = ParseBool(text, &p.DedicatedVIP)
	case Annotations:
		err = p.setAnnotations(text)
	case HostOwnership:
		err = p.setHostOwnership(text)
	default:
		return false, nil
	}
	return true, err
}

func (p *Class) setAnnotations(text string) error {
	switch text {
	case "none", "":
		p.Annotations = OwnAnnotations
	case IngressNginxValue:
		p.Annotations = IngressNginx
	default:
		p.Annotations = UnknownAnnotations
		return fmt.Errorf("%q is neither ingress-nginx nor none: Ingresses with annotations of ingress-nginx that restrict clients get 500", text)
	}
	return nil
}

func (p *Class) setHostOwnership(text string) error {
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

// ParseBool parses "true" or "false".
func ParseBool(text string, into *bool) error {
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
