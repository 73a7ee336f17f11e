// SPDX-License-Identifier: Apache-2.0

package gatewayapi

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/internal/builder"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func (c *compiler) readTCPRoute(of *route, object *gatewayv1.TCPRoute) {
	if len(object.Spec.Rules) > 0 {
		c.readLayer4(of, object.Spec.Rules[0].BackendRefs, corev1.ProtocolTCP, len(object.Spec.Rules))
	}
}

func (c *compiler) readUDPRoute(of *route, object *gatewayv1.UDPRoute) {
	if len(object.Spec.Rules) > 0 {
		c.readLayer4(of, object.Spec.Rules[0].BackendRefs, corev1.ProtocolUDP, len(object.Spec.Rules))
	}
}

// readLayer4 reads the first rule of a TCPRoute or UDPRoute. Further rules match the same connections and are
// dropped.
func (c *compiler) readLayer4(of *route, references []gatewayv1.BackendRef, protocol corev1.Protocol, rules int) {
	for i, reference := range references {
		at, port, refused := c.serviceOf(of.referrer(), reference.BackendObjectReference, protocol)
		found := model.WeightedService{
			ServicePort: model.ServicePort{Namespace: at.Namespace, Name: at.Name, Port: ptr.Deref(reference.Port, 0)},
			Weight:      int32(weight(reference.Weight)),
			Invalid:     refused != nil,
		}
		if refused != nil {
			of.refuseResolved(refused.At("spec.rules[0].backendRefs[%d]", i))
		} else {
			found.Port = port.Port
		}
		of.layer4 = append(of.layer4, found)
	}
	of.onlyFirst(rules)
}

func (r *route) onlyFirst(rules int) {
	if rules > 1 {
		r.partial = builder.Refuse(model.ReasonUnsupported, gatewayv1.RouteReasonUnsupportedValue,
			"Dropped Rule: spec.rules[1]: the first rule matches all connections")
	}
}

// frontend adds the frontend of a TCP or UDP listener, which uses the oldest route.
func (c *compiler) frontend(of *listener) {
	found := &model.Frontend{
		Gateway:  model.Object{Kind: model.KindGateway, Namespace: of.gateway.object.Namespace, Name: of.gateway.object.Name},
		Listener: string(of.spec.Name),
		Port:     of.spec.Port,
		Protocol: corev1.Protocol(of.spec.Protocol),
	}
	if of.ownerKind == model.KindListenerSet {
		found.Listener = fmt.Sprintf("%s/%s/%s", of.owner.GetNamespace(), of.owner.GetName(), of.spec.Name)
	}
	if len(of.attachments) > 0 {
		attached := of.attachments[0].route
		found.Route = model.Object{Kind: attached.kind, Namespace: attached.object.GetNamespace(), Name: attached.object.GetName()}
		found.Services = attached.layer4
	}
	c.Result.Frontends = append(c.Result.Frontends, found)
}

func compareFrontends(a, b *model.Frontend) int {
	return cmp.Or(model.CompareObjects(a.Gateway, b.Gateway), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

// readTLSRoute reads the backends of a TLSRoute twice, because a BackendTLSPolicy applies only at listeners
// that terminate TLS.
func (c *compiler) readTLSRoute(of *route, object *gatewayv1.TLSRoute) {
	if len(object.Spec.Rules) == 0 {
		return
	}
	of.tls = &route{kind: of.kind, object: of.object, age: -of.age - 1, isRead: true}
	references := object.Spec.Rules[0].BackendRefs
	c.readTLSRule(of, references, builder.Upstream{Protocol: resource.Backend_TCP, Passthrough: true})
	c.readTLSRule(of.tls, references, builder.Upstream{Protocol: resource.Backend_TCP})
	of.onlyFirst(len(object.Spec.Rules))
}

func (c *compiler) readTLSRule(of *route, references []gatewayv1.BackendRef, spec builder.Upstream) {
	rule := &resource.Rule{
		Route: fmt.Sprintf("tlsroute/%s/%s/0", of.object.GetNamespace(), of.object.GetName()),
		Match: &resource.Match{},
	}
	for i, reference := range references {
		name, refused := c.resolveBackend(of, reference.BackendObjectReference, spec)
		if refused != nil {
			of.refuseResolved(refused.At("spec.rules[0].backendRefs[%d]", i))
		}
		rule.Backends = append(rule.Backends, &resource.WeightedBackend{Backend: name, Weight: weight(reference.Weight)})
	}
	of.rules = []*orderedRule{{rule: rule}}
}
