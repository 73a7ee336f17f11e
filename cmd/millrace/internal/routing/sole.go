// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/apierror"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Restrict replaces the objects that the user may not list. The classes named by objects of the namespace
// are assumed to be Millrace's, and Gateways of other namespaces are derived from the routes that they
// accepted. sole is the only namespace that was read; empty: all were.
func (in *Input) Restrict(sole string, omitted []string) {
	if slices.Contains(omitted, "IngressClasses") {
		in.assumeIngressClasses()
	}
	if slices.Contains(omitted, "GatewayClasses") {
		in.assumeGatewayClasses()
	}
	if sole != "" {
		in.Objects.Namespaces = []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: sole}}}
		in.assumeGateways(sole)
	}
	if remark := omission(sole, omitted); remark != "" {
		in.Remarks = append([]string{remark}, in.Remarks...)
	}
}

func omission(sole string, omitted []string) string {
	text := apierror.Omission(sole, omitted)
	if text == "" {
		return ""
	}
	text += "."
	if slices.Contains(omitted, "IngressClasses") || slices.Contains(omitted, "GatewayClasses") {
		text += " Classes are assumed to be Millrace's."
	}
	return text
}

func (in *Input) assumeIngressClasses() {
	known := map[string]bool{}
	for _, ingress := range in.Objects.Ingresses {
		name := ingress.Annotations[model.AnnotationIngressClass]
		if ingress.Spec.IngressClassName != nil {
			name = *ingress.Spec.IngressClassName
		}
		if name == "" || known[name] {
			continue
		}
		known[name] = true
		in.Objects.IngressClasses = append(in.Objects.IngressClasses, &networkingv1.IngressClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressClassSpec{Controller: model.IngressController},
		})
	}
}

func (in *Input) assumeGatewayClasses() {
	known := map[string]bool{}
	for _, gateway := range in.Objects.Gateways {
		if name := string(gateway.Spec.GatewayClassName); !known[name] {
			known[name] = true
			in.Objects.GatewayClasses = append(in.Objects.GatewayClasses, gatewayClass(name))
		}
	}
}

func gatewayClass(name string) *gatewayv1.GatewayClass {
	return &gatewayv1.GatewayClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: gatewayv1.GatewayClassSpec{ControllerName: model.GatewayController},
	}
}

// assumeGateways adds the Gateways of other namespaces that have accepted HTTPRoutes or GRPCRoutes, with a
// listener for each section that the routes name.
func (in *Input) assumeGateways(sole string) {
	in.assumed = map[key]*gatewayv1.Gateway{}
	var statuses []gatewayv1.RouteStatus
	for _, from := range in.Objects.HTTPRoutes {
		statuses = append(statuses, from.Status.RouteStatus)
	}
	for _, from := range in.Objects.GRPCRoutes {
		statuses = append(statuses, from.Status.RouteStatus)
	}
	for _, status := range statuses {
		for i := range status.Parents {
			parent := &status.Parents[i]
			if parent.ControllerName == model.GatewayController && string(value(parent.ParentRef.Namespace)) != sole && accepted(parent.Conditions) {
				in.assumeGateway(&parent.ParentRef)
			}
		}
	}
	if len(in.assumed) > 0 {
		in.Objects.GatewayClasses = append(in.Objects.GatewayClasses, gatewayClass(assumedClass))
	}
}

// assumedClass is the class of assumed Gateways; it is no valid name of an object.
const assumedClass = "(assumed)"

func accepted(conditions []metav1.Condition) bool {
	return slices.ContainsFunc(conditions, func(condition metav1.Condition) bool {
		return condition.Type == string(gatewayv1.RouteConditionAccepted) && condition.Status == metav1.ConditionTrue
	})
}

func (in *Input) assumeGateway(ref *gatewayv1.ParentReference) {
	namespace := string(value(ref.Namespace))
	if namespace == "" || ref.Kind != nil && *ref.Kind != "Gateway" {
		return
	}
	of := key{namespace, string(ref.Name)}
	gateway := in.assumed[of]
	if gateway == nil {
		gateway = &gatewayv1.Gateway{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: string(ref.Name)},
			Spec:       gatewayv1.GatewaySpec{GatewayClassName: assumedClass},
		}
		in.assumed[of] = gateway
		in.Objects.Gateways = append(in.Objects.Gateways, gateway)
	}
	name := value(ref.SectionName)
	if name == "" {
		name = "any"
	}
	known := func(listener gatewayv1.Listener) bool { return listener.Name == name }
	if slices.ContainsFunc(gateway.Spec.Listeners, known) {
		return
	}
	all := gatewayv1.NamespacesFromAll
	gateway.Spec.Listeners = append(gateway.Spec.Listeners, gatewayv1.Listener{
		Name: name, Port: gatewayv1.PortNumber(80 + len(gateway.Spec.Listeners)), Protocol: gatewayv1.HTTPProtocolType,
		AllowedRoutes: &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &all}},
	})
}

// hide removes the listeners of an assumed Gateway, which are unknown.
func (c *Compiled) hide(owner *Owner) {
	if c.in.assumed[key{owner.Namespace, owner.Name.Name}] == nil || owner.Kind != "Gateway" {
		return
	}
	owner.Assumed, owner.Listeners = true, []Listener{}
	for i := range owner.Rules {
		owner.Rules[i].Ports = []string{"?"}
	}
}
