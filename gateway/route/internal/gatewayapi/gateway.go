// SPDX-License-Identifier: Apache-2.0

// Package gatewayapi compiles Gateways, ListenerSets and routes into proxy configurations, layer 4
// frontends and statuses. It is pure.
package gatewayapi

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/parameters"
)

type gateway struct {
	object    *gatewayv1.Gateway
	proxy     *builder.Proxy
	listeners []*listener
	sets      []*listenerSet
	// refused is the reason why the Gateway is not accepted, resolved the reason why its client certificate
	// cannot be used, and retained the reason why the previous version of its common fields is served.
	refused, resolved, retained *builder.Refusal
	budget                      *builder.Budget
	certificates                builder.CertificateSet
}

func (g *gateway) accepted() bool { return g.refused == nil }

type compiler struct {
	*builder.Builder
	gatewayByKey map[types.NamespacedName]*gateway
	sets         map[types.NamespacedName]*listenerSet
	// read is the encoded size in bytes of the routes that were read, by namespace.
	read map[string]int64
	// charged contains the host names at which the current route was counted. charges contains them in order.
	charged map[charge]bool
	charges []charge
}

// Compile adds the frontends, proxies and statuses of Gateway API objects to the result.
func Compile(shared *builder.Builder, objects *model.Objects) {
	c := &compiler{
		Builder:      shared,
		gatewayByKey: map[types.NamespacedName]*gateway{},
		sets:         map[types.NamespacedName]*listenerSet{},
		read:         map[string]int64{},
		charged:      map[charge]bool{},
	}
	classes := c.gatewayClasses(objects)
	sets, routes := c.setsByGateway(objects.ListenerSets), c.orderedRoutes(objects)
	for _, object := range builder.OldestFirst(objects.Gateways) {
		class := classes[string(object.Spec.GatewayClassName)]
		if class == nil {
			continue
		}
		found := c.newGateway(object, class)
		c.attachSets(found, sets[model.KeyOf(object)])
		c.gatewayByKey[model.KeyOf(object)] = found
		c.protectOwners(found, routes)
		conflicts(found.listeners)
		c.recordVersions(found)
	}
	c.attachShared(routes)
	c.usePolicies()
	for _, at := range slices.SortedFunc(maps.Keys(c.gatewayByKey), model.CompareKeys) {
		c.finishGateway(c.gatewayByKey[at])
	}
	c.policyStatuses()
	sortStatuses(c.Result.Statuses.GatewayClasses)
	sortStatuses(c.Result.Statuses.ListenerSets)
	sortStatuses(c.Result.Statuses.BackendTLSPolicies)
	slices.SortFunc(c.Result.Frontends, compareFrontends)
}

type gatewayClass struct{ parameters model.Parameters }

// gatewayClasses returns this controller's GatewayClasses by name. Invalid parameters have their defaults.
func (c *compiler) gatewayClasses(objects *model.Objects) map[string]*gatewayClass {
	found := map[string]*gatewayClass{}
	for _, object := range builder.OldestFirst(objects.GatewayClasses) {
		if object.Spec.ControllerName != c.Settings.GatewayController {
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
					gatewayv1.GatewayClassReasonInvalidParameters, "spec.parametersRef: "+refused.Message, object.Generation)
			}
			class.parameters = parameters
		}
		found[object.Name] = class
		status := gatewayv1.GatewayClassStatus{SupportedFeatures: supportedFeatures()}
		status.Conditions = append(status.Conditions, accepted, versionCondition(objects.GatewayAPIVersion, object.Generation))
		c.Result.Statuses.GatewayClasses = append(c.Result.Statuses.GatewayClasses, statusOf(object, status))
	}
	return found
}

func (c *compiler) gatewayParameters(group gatewayv1.Group, kind gatewayv1.Kind, at types.NamespacedName) (model.Parameters, *builder.Refusal) {
	if group != "" || kind != model.KindConfigMap {
		return model.Parameters{}, builder.Refuse(model.ReasonUnsupported, "", "parameters must be a ConfigMap of the core group, not a %s", kind)
	}
	configMap := c.Index.ConfigMaps[at]
	if configMap == nil {
		return model.Parameters{}, builder.Refuse(model.ReasonNotFound, "", "there is no ConfigMap %s/%s", at.Namespace, at.Name)
	}
	c.RecordVersion(model.KindConfigMap, configMap)
	found, problems := parameters.Parse(configMap, false)
	for _, problem := range problems {
		c.AddFailure(model.Object{Kind: model.KindConfigMap, Namespace: at.Namespace, Name: at.Name}, "data."+problem.Key,
			problem.Reason, "data."+problem.Key+": "+problem.Message)
	}
	if len(problems) > 0 {
		return found.Parameters, builder.Refuse(problems[0].Reason, "", "ConfigMap %s/%s, %s: %s",
			at.Namespace, at.Name, problems[0].Key, problems[0].Message)
	}
	return found.Parameters, nil
}

// newGateway returns a Gateway with its own listeners, without ListenerSets.
func (c *compiler) newGateway(object *gatewayv1.Gateway, class *gatewayClass) *gateway {
	found := &gateway{
		object: object,
		proxy:  c.NewProxy(model.Object{Kind: model.KindGateway, Namespace: object.Namespace, Name: object.Name}),
		budget: builder.NewBudget(c.Settings.NamespaceBytes), certificates: builder.CertificateSet{},
	}
	at := model.KeyOf(object)
	found.proxy.Gateway = &at
	proxy := found.proxy.Result
	proxy.Parameters = class.parameters
	proxy.Addresses = object.Spec.Addresses
	for i, address := range object.Spec.Addresses {
		if address.Type != nil && *address.Type != gatewayv1.IPAddressType {
			found.refused = builder.Refuse(model.ReasonUnsupported, gatewayv1.GatewayReasonUnsupportedAddress,
				"spec.addresses[%d]: type %s is not supported, only IPAddress", i, *address.Type)
		} else if _, err := netip.ParseAddr(address.Value); err != nil && address.Value != "" {
			found.refused = builder.Refuse(model.ReasonInvalid, gatewayv1.GatewayReasonUnsupportedAddress,
				"spec.addresses[%d]: %q is not an IP address", i, address.Value)
		}
	}
	if infrastructure := object.Spec.Infrastructure; infrastructure != nil {
		c.readInfrastructure(found, infrastructure)
	}
	if object.Spec.TLS != nil && object.Spec.TLS.Backend != nil && object.Spec.TLS.Backend.ClientCertificateRef != nil {
		found.proxy.ClientCertificate, found.resolved = c.secretOf(builder.Referrer{Kind: model.KindGateway, Namespace: object.Namespace},
			*object.Spec.TLS.Backend.ClientCertificateRef, string(gatewayv1.GatewayReasonInvalidClientCertificateRef))
	}
	c.readRetained(found)
	for _, spec := range object.Spec.Listeners {
		found.listeners = append(found.listeners, c.newListener(found, object, model.KindGateway, spec))
	}
	return found
}

func (c *compiler) readInfrastructure(of *gateway, infrastructure *gatewayv1.GatewayInfrastructure) {
	proxy := of.proxy.Result
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
			of.refused = builder.Refuse(refused.Reason, gatewayv1.GatewayReasonInvalidParameters,
				"spec.infrastructure.parametersRef: %s", refused.Message)
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
	of.proxy.Result.Ports = builder.TargetPorts(ports, c.Settings.ReservedPorts)
	targets := make(map[int32]uint32, len(of.proxy.Result.Ports))
	for _, port := range of.proxy.Result.Ports {
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
		c.Result.Proxies = append(c.Result.Proxies, of.proxy.Finish())
	}
	c.Result.Statuses.Gateways = append(c.Result.Statuses.Gateways, statusOf(of.object, of.status()))
	for _, set := range of.sets {
		c.Result.Statuses.ListenerSets = append(c.Result.Statuses.ListenerSets, statusOf(set.object, set.status()))
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
		TrustedHops:      g.proxy.Result.Parameters.TrustedHops,
	}
	if of.terminatesTLS() {
		wire.TlsPolicy = g.proxy.Result.Parameters.TLSPolicy
	}
	if of.passthrough() {
		wire.Protocol = resource.Listener_TLS_PASSTHROUGH
	}
	for _, certificate := range of.certificates {
		wire.Certificates = append(wire.Certificates, g.proxy.Certificate(certificate))
	}
	for _, authority := range of.authorities {
		g.proxy.Add(authority)
	}
	g.proxy.Listener(of.name, wire)
}
