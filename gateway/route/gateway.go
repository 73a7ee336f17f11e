// SPDX-License-Identifier: Apache-2.0

package route

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
)

type gateway struct {
	object    *gatewayv1.Gateway
	builder   *builder
	listeners []*listener
	sets      []*listenerSet
	// refused is why the Gateway is not accepted, resolved why its client certificate is not usable.
	refused, resolved *refusal
	budget            *budget
	certificates      certificateSet
}

func (g *gateway) accepted() bool { return g.refused == nil }

type compiler struct {
	*compilation
	gatewayByKey map[types.NamespacedName]*gateway
	sets         map[types.NamespacedName]*listenerSet
	// read is the encoded size of the routes that were read, by namespace.
	read map[string]int64
	// charged are the host names at which the current route is counted; charges lists them in order.
	charged map[charge]bool
	charges []charge
}

func compileGateways(shared *compilation, objects *Objects) {
	c := &compiler{
		compilation:  shared,
		gatewayByKey: map[types.NamespacedName]*gateway{},
		sets:         map[types.NamespacedName]*listenerSet{},
		read:         map[string]int64{},
		charged:      map[charge]bool{},
	}
	classes := c.gatewayClasses(objects)
	sets, routes := c.setsByGateway(objects.ListenerSets), c.orderedRoutes(objects)
	for _, object := range oldestFirst(objects.Gateways) {
		class := classes[string(object.Spec.GatewayClassName)]
		if class == nil {
			continue
		}
		found := c.newGateway(object, class)
		c.attachSets(found, sets[keyOf(object)])
		c.gatewayByKey[keyOf(object)] = found
		c.protectOwners(found, routes)
		conflicts(found.listeners)
	}
	c.attachShared(routes)
	c.usePolicies()
	for _, at := range slices.SortedFunc(maps.Keys(c.gatewayByKey), compareKeys) {
		c.finishGateway(c.gatewayByKey[at])
	}
	c.policyStatuses()
	sortStatuses(c.result.Statuses.GatewayClasses)
	sortStatuses(c.result.Statuses.ListenerSets)
	sortStatuses(c.result.Statuses.BackendTLSPolicies)
	slices.SortFunc(c.result.Frontends, compareFrontends)
}

type gatewayClass struct{ parameters Parameters }

// gatewayClasses reads the GatewayClasses, with defaults for invalid parameters.
func (c *compiler) gatewayClasses(objects *Objects) map[string]*gatewayClass {
	found := map[string]*gatewayClass{}
	for _, object := range oldestFirst(objects.GatewayClasses) {
		if object.Spec.ControllerName != c.settings.GatewayController {
			continue
		}
		class := &gatewayClass{}
		accepted := condition(gatewayv1.GatewayClassConditionStatusAccepted, true,
			gatewayv1.GatewayClassReasonAccepted, "", object.Generation)
		if reference := object.Spec.ParametersRef; reference != nil {
			at := types.NamespacedName{Namespace: string(ptr.Deref(reference.Namespace, "")), Name: reference.Name}
			parameters, refused := c.gatewayParameters(reference.Group, reference.Kind, at)
			if refused != nil {
				accepted = condition(gatewayv1.GatewayClassConditionStatusAccepted, false,
					gatewayv1.GatewayClassReasonInvalidParameters, "spec.parametersRef: "+refused.message, object.Generation)
			}
			class.parameters = parameters
		}
		found[object.Name] = class
		status := gatewayv1.GatewayClassStatus{SupportedFeatures: supportedFeatures()}
		status.Conditions = append(status.Conditions, accepted, versionCondition(objects.GatewayAPIVersion, object.Generation))
		c.result.Statuses.GatewayClasses = append(c.result.Statuses.GatewayClasses, statusOf(object, status))
	}
	return found
}

func (c *compiler) gatewayParameters(group gatewayv1.Group, kind gatewayv1.Kind, at types.NamespacedName) (Parameters, *refusal) {
	if group != "" || kind != kindConfigMap {
		return Parameters{}, refuse(ReasonUnsupported, "", "parameters must be a ConfigMap of the core group, not a %s", kind)
	}
	configMap := c.index.configMaps[at]
	if configMap == nil {
		return Parameters{}, refuse(ReasonNotFound, "", "there is no ConfigMap %s/%s", at.Namespace, at.Name)
	}
	c.recordVersion(kindConfigMap, configMap)
	found, problems := parseParameters(configMap, false)
	for _, problem := range problems {
		c.addFailure(Object{Kind: kindConfigMap, Namespace: at.Namespace, Name: at.Name}, "data."+problem.key,
			problem.reason, "data."+problem.key+": "+problem.message)
	}
	if len(problems) > 0 {
		return found.Parameters, refuse(problems[0].reason, "", "ConfigMap %s/%s, %s: %s",
			at.Namespace, at.Name, problems[0].key, problems[0].message)
	}
	return found.Parameters, nil
}

// newGateway reads a Gateway without its ListenerSets.
func (c *compiler) newGateway(object *gatewayv1.Gateway, class *gatewayClass) *gateway {
	found := &gateway{
		object:  object,
		builder: c.newBuilder(Object{Kind: kindGateway, Namespace: object.Namespace, Name: object.Name}),
		budget:  newBudget(c.settings.NamespaceBytes), certificates: certificateSet{},
	}
	at := keyOf(object)
	found.builder.gateway = &at
	proxy := found.builder.proxy
	proxy.Parameters = class.parameters
	proxy.Addresses = object.Spec.Addresses
	for i, address := range object.Spec.Addresses {
		if address.Type != nil && *address.Type != gatewayv1.IPAddressType {
			found.refused = refuse(ReasonUnsupported, gatewayv1.GatewayReasonUnsupportedAddress,
				"spec.addresses[%d]: type %s is not supported, only IPAddress", i, *address.Type)
		} else if _, err := netip.ParseAddr(address.Value); err != nil && address.Value != "" {
			found.refused = refuse(ReasonInvalid, gatewayv1.GatewayReasonUnsupportedAddress,
				"spec.addresses[%d]: %q is not an IP address", i, address.Value)
		}
	}
	if infrastructure := object.Spec.Infrastructure; infrastructure != nil {
		c.readInfrastructure(found, infrastructure)
	}
	if object.Spec.TLS != nil && object.Spec.TLS.Backend != nil && object.Spec.TLS.Backend.ClientCertificateRef != nil {
		found.builder.clientCertificate, found.resolved = c.secretOf(referrer{kindGateway, object.Namespace},
			*object.Spec.TLS.Backend.ClientCertificateRef, string(gatewayv1.GatewayReasonInvalidClientCertificateRef))
	}
	for _, spec := range object.Spec.Listeners {
		found.listeners = append(found.listeners, c.newListener(found, object, kindGateway, spec))
	}
	return found
}

func (c *compiler) readInfrastructure(of *gateway, infrastructure *gatewayv1.GatewayInfrastructure) {
	proxy := of.builder.proxy
	for name, text := range infrastructure.Labels {
		if proxy.Labels == nil {
			proxy.Labels = map[string]string{}
		}
		proxy.Labels[string(name)] = string(text)
	}
	for name, text := range infrastructure.Annotations {
		if proxy.Annotations == nil {
			proxy.Annotations = map[string]string{}
		}
		proxy.Annotations[string(name)] = string(text)
	}
	if reference := infrastructure.ParametersRef; reference != nil {
		found, refused := c.gatewayParameters(reference.Group, reference.Kind, types.NamespacedName{Namespace: of.object.Namespace, Name: reference.Name})
		if refused != nil {
			of.refused = refuse(refused.reason, gatewayv1.GatewayReasonInvalidParameters,
				"spec.infrastructure.parametersRef: %s", refused.message)
			return
		}
		proxy.Parameters = found
	}
}

func (c *compiler) finishGateway(of *gateway) {
	ports := map[int32]bool{}
	for _, listener := range of.listeners {
		if listener.exposed() && !listener.layer4() {
			ports[listener.spec.Port] = true
		}
	}
	of.builder.proxy.Ports = targetPorts(ports, c.settings.ReservedPorts)
	targets := make(map[int32]uint32, len(of.builder.proxy.Ports))
	for _, port := range of.builder.proxy.Ports {
		if port.Protocol == corev1.ProtocolTCP {
			targets[port.VIP] = uint32(port.Target)
		}
	}
	for _, listener := range of.listeners {
		if !listener.programmed() {
			continue
		}
		if listener.layer4() {
			c.frontend(listener)
			continue
		}
		of.addListener(listener, targets[listener.spec.Port])
	}
	of.addGroups()
	if of.accepted() {
		c.result.Proxies = append(c.result.Proxies, of.builder.finish())
	}
	c.result.Statuses.Gateways = append(c.result.Statuses.Gateways, statusOf(of.object, of.status()))
	for _, set := range of.sets {
		c.result.Statuses.ListenerSets = append(c.result.Statuses.ListenerSets, statusOf(set.object, set.status()))
	}
}

var wireProtocols = map[gatewayv1.ProtocolType]resource.Listener_Protocol{
	gatewayv1.HTTPProtocolType:  resource.Listener_HTTP,
	gatewayv1.HTTPSProtocolType: resource.Listener_HTTPS,
	gatewayv1.TLSProtocolType:   resource.Listener_TLS_TERMINATE,
}

func (g *gateway) addListener(of *listener, target uint32) {
	wire := &resource.Listener{
		Port:             uint32(of.spec.Port),
		TargetPort:       target,
		Protocol:         wireProtocols[of.spec.Protocol],
		Hostname:         of.host.Resource(resource.Hostname_LABELS),
		ClientValidation: of.validation,
		TrustedHops:      g.builder.proxy.Parameters.TrustedHops,
	}
	if of.terminatesTLS() {
		wire.TlsPolicy = g.builder.proxy.Parameters.TLSPolicy
	}
	if of.passthrough() {
		wire.Protocol = resource.Listener_TLS_PASSTHROUGH
	}
	for _, certificate := range of.certificates {
		wire.Certificates = append(wire.Certificates, g.builder.certificate(certificate))
	}
	for _, authority := range of.authorities {
		g.builder.add(authority)
	}
	g.builder.listener(of.name, wire)
}
