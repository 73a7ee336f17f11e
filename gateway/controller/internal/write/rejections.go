// SPDX-License-Identifier: Apache-2.0

package write

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/controller/internal/nack"
	"github.com/millrace-lb/millrace/gateway/route"
)

type rejections struct {
	of       map[route.Object]nack.Rejection
	gateways map[types.NamespacedName]route.Object
}

func readRejections(compiled *Compiled, live map[objectKey]client.Object) rejections {
	owners := make(map[string]route.Object, len(compiled.Result.Proxies))
	for _, proxy := range compiled.Result.Proxies {
		owners[infrastructure.Key(proxy.Owner)] = proxy.Owner
	}
	found := rejections{of: map[route.Object]nack.Rejection{}, gateways: map[types.NamespacedName]route.Object{}}
	for _, object := range live {
		deployment, is := object.(*appsv1.Deployment)
		if !is {
			continue
		}
		owner, known := owners[deployment.Annotations[infrastructure.AnnotationOwner]]
		if refused := nack.Read(deployment); known && !refused.IsZero() {
			found.of[owner] = refused
		}
	}
	if len(found.of) == 0 {
		return found
	}
	for _, set := range compiled.Objects.ListenerSets {
		parent := set.Spec.ParentRef
		gateway := objectOfGateway(set.Namespace, string(parent.Name))
		if parent.Namespace != nil {
			gateway.Namespace = string(*parent.Namespace)
		}
		found.gateways[client.ObjectKeyFromObject(set)] = gateway
	}
	return found
}

// owners has a stable order, so that repeated passes write the same.
func (r rejections) owners() []route.Object {
	return slices.SortedFunc(maps.Keys(r.of), func(a, b route.Object) int {
		return cmp.Compare(infrastructure.Key(a), infrastructure.Key(b))
	})
}

// problems excludes routes, which have a condition instead.
func (r rejections) problems() []route.Problem {
	var found []route.Problem
	for _, owner := range r.owners() {
		refused := r.of[owner]
		if refused.IsWhole() {
			found = append(found, route.Problem{Object: owner, Reason: route.ReasonConfigurationRefused, Message: refused.Text()})
			continue
		}
		for _, part := range refused.Parts {
			object := ruleObject(part.Route)
			if object == (route.Object{}) {
				object = owner
			}
			if object != owner && object.Kind != "Ingress" {
				continue
			}
			found = append(found, route.Problem{Object: object, Reason: route.ReasonConfigurationRefused, Message: refused.TextOf(part)})
		}
	}
	return found
}

// ruleObject returns the zero value for a name other than "httproute/namespace/name".
func ruleObject(name string) route.Object {
	kinds := map[string]string{
		"ingress": "Ingress", "httproute": "HTTPRoute", "grpcroute": "GRPCRoute", "tlsroute": "TLSRoute",
	}
	parts := strings.Split(name, "/")
	if len(parts) != 3 || kinds[parts[0]] == "" {
		return route.Object{}
	}
	return route.Object{Kind: kinds[parts[0]], Namespace: parts[1], Name: parts[2]}
}

func (r rejections) ofGateway(gateway *gatewayv1.Gateway) *metav1.Condition {
	refused := r.of[objectOfGateway(gateway.Namespace, gateway.Name)]
	if len(refused.Parts) == 0 {
		return nil
	}
	return &metav1.Condition{
		Type: route.ConditionResourcesRefused, Status: metav1.ConditionTrue, Reason: route.ReasonConfigurationRefused,
		Message: refused.Text(), ObservedGeneration: gateway.Generation,
	}
}

func objectOfGateway(namespace, name string) route.Object {
	return route.Object{Kind: "Gateway", Namespace: namespace, Name: name}
}

// ofRoute adds the PartiallyInvalid condition to each parent whose proxies reject a part of the route.
func (r rejections) ofRoute(of client.Object, wanted gatewayv1.RouteStatus) gatewayv1.RouteStatus {
	if len(r.of) == 0 {
		return wanted
	}
	self, parents := objectOf(of), slices.Clone(wanted.Parents)
	for i := range parents {
		refused := r.of[r.gatewayOf(parents[i].ParentRef, of.GetNamespace())]
		at := slices.IndexFunc(refused.Parts, func(part nack.Part) bool { return ruleObject(part.Route) == self })
		if at >= 0 && !hasCondition(parents[i].Conditions, string(gatewayv1.RouteConditionPartiallyInvalid)) {
			parents[i].Conditions = append(slices.Clone(parents[i].Conditions), partiallyInvalid(refused, refused.Parts[at], of.GetGeneration()))
		}
	}
	wanted.Parents = parents
	return wanted
}

func (r rejections) gatewayOf(parent gatewayv1.ParentReference, namespace string) route.Object {
	if parent.Namespace != nil {
		namespace = string(*parent.Namespace)
	}
	if parent.Kind != nil && *parent.Kind == "ListenerSet" {
		return r.gateways[types.NamespacedName{Namespace: namespace, Name: string(parent.Name)}]
	}
	return objectOfGateway(namespace, string(parent.Name))
}

func hasCondition(conditions []metav1.Condition, kind string) bool {
	return slices.ContainsFunc(conditions, func(c metav1.Condition) bool { return c.Type == kind })
}

// partiallyInvalid uses the message prefixes that Gateway API specifies.
func partiallyInvalid(refused nack.Rejection, part nack.Part, generation int64) metav1.Condition {
	prefix := "Dropped Rule: "
	if part.Retained {
		prefix = "Fall Back: "
	}
	return metav1.Condition{
		Type: string(gatewayv1.RouteConditionPartiallyInvalid), Status: metav1.ConditionTrue, Reason: route.ReasonConfigurationRefused,
		Message: prefix + refused.TextOf(part), ObservedGeneration: generation,
	}
}
