// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/resource"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// problems includes statuses that the gateway has written, since only it can read certificates.
func (c *Compiled) problems(choice Choice) []Problem {
	found := []Problem{}
	for _, problem := range c.result.Problems {
		object := Name{problem.Object.Kind, problem.Object.Namespace, problem.Object.Name}
		found = append(found, Problem{Object: object, Reason: problem.Reason, Message: problem.Message})
	}
	statuses := &c.result.Statuses
	found = append(found, c.certificateProblems()...)
	found = append(found, c.gatewayProblems()...)
	found = append(found, routeProblems("HTTPRoute", statuses.HTTPRoutes, writtenRoutes(c.in.Objects.HTTPRoutes,
		func(o *gatewayv1.HTTPRoute) gatewayv1.RouteStatus { return o.Status.RouteStatus }))...)
	found = append(found, routeProblems("GRPCRoute", statuses.GRPCRoutes, writtenRoutes(c.in.Objects.GRPCRoutes,
		func(o *gatewayv1.GRPCRoute) gatewayv1.RouteStatus { return o.Status.RouteStatus }))...)
	found = append(found, routeProblems("TLSRoute", statuses.TLSRoutes, writtenRoutes(c.in.Objects.TLSRoutes,
		func(o *gatewayv1.TLSRoute) gatewayv1.RouteStatus { return o.Status.RouteStatus }))...)
	found = append(found, routeProblems("TCPRoute", statuses.TCPRoutes, writtenRoutes(c.in.Objects.TCPRoutes,
		func(o *gatewayv1.TCPRoute) gatewayv1.RouteStatus { return o.Status.RouteStatus }))...)
	found = append(found, routeProblems("UDPRoute", statuses.UDPRoutes, writtenRoutes(c.in.Objects.UDPRoutes,
		func(o *gatewayv1.UDPRoute) gatewayv1.RouteStatus { return o.Status.RouteStatus }))...)
	for _, policy := range statuses.BackendTLSPolicies {
		for _, ancestor := range policy.Status.Ancestors {
			object := Name{"BackendTLSPolicy", policy.Namespace, policy.Name}
			found = append(found, conditionProblems(object, string(ancestor.AncestorRef.Name), ancestor.Conditions, nil)...)
		}
	}
	if choice.Namespace != "" {
		found = slices.DeleteFunc(found, func(p Problem) bool { return p.Object.Namespace != choice.Namespace })
	}
	slices.SortStableFunc(found, func(a, b Problem) int {
		return cmp.Or(compareNames(a.Object, b.Object), cmp.Compare(a.Part, b.Part), cmp.Compare(a.Reason, b.Reason))
	})
	return slices.Compact(found)
}

// certificateProblems returns Ingresses that would serve port 443 with valid certificates, but whose
// written status has an error of this port or lacks it.
func (c *Compiled) certificateProblems() []Problem {
	written := make(map[key]*networkingv1.Ingress, len(c.in.Objects.Ingresses))
	for _, ingress := range c.in.Objects.Ingresses {
		written[key{ingress.Namespace, ingress.Name}] = ingress
	}
	var found []Problem
	for _, status := range c.result.Ingresses {
		ingress := written[key{status.Namespace, status.Name}]
		wanted := slices.ContainsFunc(status.Ports, func(p model.IngressPort) bool { return p.Number == portHTTPS })
		if ingress == nil || !wanted || !isServed(ingress, 0) || isServed(ingress, portHTTPS) {
			continue
		}
		found = append(found, Problem{
			Object: Name{"Ingress", status.Namespace, status.Name}, Reason: model.ReasonInvalidCertificate,
			Message: "spec.tls: not all hosts are served at port 443, because of a missing certificate; " +
				"kubectl events -n " + status.Namespace + " --for ingress/" + status.Name + " says why",
		})
	}
	return found
}

const portHTTPS int32 = 443

// certificateErrors are the errors of ports whose hosts lack a certificate.
var certificateErrors = []string{
	millracev1beta1.PortErrorPrefix + model.ReasonNotFound, millracev1beta1.PortErrorPrefix + model.ReasonInvalidCertificate,
}

// isServed reports whether the status has an address with the port and its certificate; 0: with any port.
func isServed(ingress *networkingv1.Ingress, port int32) bool {
	return slices.ContainsFunc(ingress.Status.LoadBalancer.Ingress, func(point networkingv1.IngressLoadBalancerIngress) bool {
		return slices.ContainsFunc(point.Ports, func(p networkingv1.IngressPortStatus) bool {
			return port == 0 || p.Port == port && (p.Error == nil || !slices.Contains(certificateErrors, *p.Error))
		})
	})
}

// gatewayProblems returns the problems of GatewayClasses, Gateways, ListenerSets and their listeners.
func (c *Compiled) gatewayProblems() []Problem {
	var found []Problem
	for _, class := range c.result.Statuses.GatewayClasses {
		found = append(found, conditionProblems(Name{Kind: "GatewayClass", Name: class.Name}, "", class.Status.Conditions, nil)...)
	}
	written := map[key]*gatewayv1.Gateway{}
	for _, gateway := range c.in.Objects.Gateways {
		written[key{gateway.Namespace, gateway.Name}] = gateway
	}
	for _, gateway := range c.result.Statuses.Gateways {
		object, was := Name{"Gateway", gateway.Namespace, gateway.Name}, gatewayv1.GatewayStatus{}
		if from := written[key{gateway.Namespace, gateway.Name}]; from != nil {
			was = from.Status
		}
		found = append(found, conditionProblems(object, "", gateway.Status.Conditions, was.Conditions)...)
		for _, listener := range gateway.Status.Listeners {
			var before []metav1.Condition
			for _, known := range was.Listeners {
				if known.Name == listener.Name {
					before = known.Conditions
				}
			}
			found = append(found, conditionProblems(object, string(listener.Name), listener.Conditions, before)...)
		}
	}
	for _, set := range c.result.Statuses.ListenerSets {
		object := Name{"ListenerSet", set.Namespace, set.Name}
		found = append(found, conditionProblems(object, "", set.Status.Conditions, nil)...)
		for _, listener := range set.Status.Listeners {
			found = append(found, conditionProblems(object, string(listener.Name), listener.Conditions, nil)...)
		}
	}
	return found
}

func writtenRoutes[T metav1.Object](objects []T, status func(T) gatewayv1.RouteStatus) map[key]gatewayv1.RouteStatus {
	found := make(map[key]gatewayv1.RouteStatus, len(objects))
	for _, object := range objects {
		found[key{object.GetNamespace(), object.GetName()}] = status(object)
	}
	return found
}

func routeProblems(kind string, statuses []model.Status[gatewayv1.RouteStatus], written map[key]gatewayv1.RouteStatus) []Problem {
	var found []Problem
	for _, status := range statuses {
		for i := range status.Status.Parents {
			parent := &status.Status.Parents[i]
			var before []metav1.Condition
			for _, known := range written[key{status.Namespace, status.Name}].Parents {
				if known.ControllerName == parent.ControllerName && sameParent(&known.ParentRef, &parent.ParentRef) {
					before = known.Conditions
				}
			}
			part := string(parent.ParentRef.Name)
			if parent.ParentRef.SectionName != nil {
				part += "/" + string(*parent.ParentRef.SectionName)
			}
			found = append(found, conditionProblems(Name{kind, status.Namespace, status.Name}, part, parent.Conditions, before)...)
		}
	}
	return found
}

func sameParent(a, b *gatewayv1.ParentReference) bool {
	return a.Name == b.Name && value(a.Namespace) == value(b.Namespace) && value(a.SectionName) == value(b.SectionName) &&
		value(a.Port) == value(b.Port)
}

func value[T any](pointer *T) T {
	if pointer == nil {
		var zero T
		return zero
	}
	return *pointer
}

// conditionProblems returns problems in compiled and other written conditions. Programmed=False is left out
// if there is another problem, which is its cause as a rule.
func conditionProblems(object Name, part string, compiled, written []metav1.Condition) []Problem {
	var found, consequences []Problem
	refused := map[string]bool{}
	for i, condition := range slices.Concat(compiled, written) {
		if !bad(condition) || refused[condition.Type] && i >= len(compiled) {
			continue
		}
		refused[condition.Type] = true
		problem := Problem{object, part, condition.Reason, condition.Message}
		if condition.Status == metav1.ConditionTrue && condition.Type == resolvedRefs {
			problem.Reason = model.ReasonInvalidCertificate
		}
		if condition.Type == programmed {
			consequences = append(consequences, problem)
		} else {
			found = append(found, problem)
		}
	}
	if len(found) == 0 {
		return consequences
	}
	return found
}

const (
	programmed   = string(gatewayv1.ListenerConditionProgrammed)
	resolvedRefs = string(gatewayv1.ListenerConditionResolvedRefs)
)

// bad reports whether a condition rejects something. The message of a true ResolvedRefs describes a served
// certificate, such as an expired one.
func bad(condition metav1.Condition) bool {
	switch condition.Type {
	case string(gatewayv1.ListenerConditionConflicted), string(gatewayv1.RouteConditionPartiallyInvalid):
		return condition.Status == metav1.ConditionTrue
	case string(gatewayv1.ListenerConditionAccepted), programmed:
		return condition.Status == metav1.ConditionFalse
	case resolvedRefs:
		return condition.Status == metav1.ConditionFalse || condition.Message != ""
	}
	return false
}

func (c *Compiled) datagramEndpoints(of model.ServicePort) *resource.Endpoints {
	found := &resource.Endpoints{}
	service := c.services[key{of.Namespace, of.Name}]
	if service == nil {
		return found
	}
	index := slices.IndexFunc(service.Spec.Ports, func(port corev1.ServicePort) bool {
		return port.Port == of.Port && port.Protocol == corev1.ProtocolUDP
	})
	if index < 0 {
		return found
	}
	for _, slice := range c.slices[key{of.Namespace, of.Name}] {
		for _, port := range slice.Ports {
			if value(port.Name) != service.Spec.Ports[index].Name || port.Port == nil {
				continue
			}
			for _, endpoint := range slice.Endpoints {
				if takesNew(endpoint.Conditions) && len(endpoint.Addresses) > 0 {
					found.Endpoints = append(found.Endpoints, &resource.Endpoint{
						Address: endpoint.Addresses[0], Port: uint32(*port.Port),
					})
				}
			}
		}
	}
	return found
}

func takesNew(conditions discoveryv1.EndpointConditions) bool {
	return conditions.Ready == nil || *conditions.Ready
}
