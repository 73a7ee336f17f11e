// SPDX-License-Identifier: Apache-2.0

// Package analysis computes the effect of manifests offline, from the CRDs' schemas, the operator's plans
// and the gateway's compiler. It is pure.
package analysis

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/manifests"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/report"
	"github.com/millrace-lb/millrace/cmd/millrace/internal/routing"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/operator/review"
)

// Options are settings that manifests do not contain.
type Options struct {
	Class         desired.Class
	AssumeSecrets bool
	Namespace     string
}

// View is the result. Its lists are sorted.
type View struct {
	Objects  int       `json:"objects"`
	VIPs     []VIP     `json:"vips"`
	Problems []Problem `json:"problems"`
	Remarks  []string  `json:"remarks,omitempty"`
}

// VIP is an address that Services would have.
type VIP struct {
	report.Allocation
	// Services are "namespace/name"; empty for a reserved address.
	Services []string `json:"services,omitempty"`
}

// Problem is a problem that the objects would have.
type Problem struct {
	report.Problem
	Source string `json:"source,omitempty"`
}

// Analyze returns the plan for objects.
func Analyze(objects *manifests.Objects, options Options) (*View, error) {
	a := &analysis{objects: objects, options: options}
	a.sort()
	a.addClasses()
	view := &View{Objects: len(objects.Known), VIPs: []VIP{}}
	a.refused()
	a.keys()
	result := review.Cluster(&a.cluster)
	for _, problem := range result.Problems {
		a.problem(problem.Object, problem.Reason, problem.Message)
	}
	view.Remarks = append(result.Remarks, objects.Remarks...)
	a.endpoints(result.VIPs)
	for i := range result.VIPs {
		view.VIPs = append(view.VIPs, vipOf(&result.VIPs[i]))
	}
	return view, a.finish(view)
}

func (a *analysis) refused() {
	for _, problem := range a.objects.Problems {
		a.problem(problem.Object, review.ReasonRejected, problem.Message)
		a.problems[len(a.problems)-1].Source = problem.Source
	}
}

// keys reports annotations, labels and classes of Ingresses without an effect. Those of Services are reported
// with the Services.
func (a *analysis) keys() {
	var classes []string
	for _, class := range a.routing.Objects.IngressClasses {
		classes = append(classes, class.Name)
	}
	for _, object := range a.objects.Known {
		named, ok := object.(metav1.Object)
		if _, isService := object.(*corev1.Service); !ok || isService {
			continue
		}
		kind := object.GetObjectKind().GroupVersionKind().Kind
		warnings := review.Keys(kind, named)
		if ingress, is := object.(*networkingv1.Ingress); is {
			if class := ingress.Spec.IngressClassName; class != nil {
				warnings = append(warnings, review.IngressClass("spec.ingressClassName", *class, classes)...)
			}
			warnings = append(warnings, review.IngressClass("metadata.annotations["+model.AnnotationIngressClass+"]",
				ingress.Annotations[model.AnnotationIngressClass], classes)...)
		}
		if gateway, is := object.(*gatewayv1.Gateway); is && gateway.Spec.Infrastructure != nil {
			warnings = append(warnings, ofInfrastructure(gateway.Spec.Infrastructure)...)
		}
		for _, warning := range warnings {
			a.problem(desired.Object{Kind: kind, Namespace: named.GetNamespace(), Name: named.GetName()}, review.ReasonNoEffect, warning)
		}
	}
}

// ofInfrastructure reports keys without an effect on the Service of a Gateway.
func ofInfrastructure(infrastructure *gatewayv1.GatewayInfrastructure) (warnings []string) {
	service := &metav1.ObjectMeta{Annotations: map[string]string{}, Labels: map[string]string{}}
	for key, value := range infrastructure.Annotations {
		service.Annotations[string(key)] = string(value)
	}
	for key, value := range infrastructure.Labels {
		service.Labels[string(key)] = string(value)
	}
	for _, warning := range review.Keys("Service", service) {
		warnings = append(warnings, strings.Replace(warning, "metadata", "spec.infrastructure", 1))
	}
	return warnings
}

func (a *analysis) finish(view *View) error {
	routes, err := routing.Compile(&a.routing).View(routing.Choice{})
	if err != nil {
		return err
	}
	for _, problem := range routes.Problems {
		message := problem.Message
		if problem.Part != "" {
			message = problem.Part + ": " + message
		}
		a.problem(desired.Object{Kind: problem.Object.Kind, Namespace: problem.Object.Namespace, Name: problem.Object.Name}, problem.Reason, message)
	}
	if remark := a.ignoredKinds(); remark != "" {
		view.Remarks = append(view.Remarks, remark)
	}
	slices.SortStableFunc(a.problems, func(x, y Problem) int {
		return cmp.Or(cmp.Compare(x.Source, y.Source), cmp.Compare(x.Kind, y.Kind),
			cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	view.Problems = slices.Compact(a.problems)
	return nil
}

type analysis struct {
	objects  *manifests.Objects
	options  Options
	cluster  review.Objects
	routing  routing.Input
	slices   []discoveryv1.EndpointSlice
	problems []Problem
}

func (a *analysis) problem(object desired.Object, reason, message string) {
	a.problems = append(a.problems, Problem{
		Problem: report.Problem{Kind: object.Kind, Namespace: object.Namespace, Name: object.Name, Reason: reason, Message: message},
		Source:  a.objects.Sources[object],
	})
}

func (a *analysis) sort() {
	a.cluster.Class, a.cluster.AssumeSecrets = a.options.Class, a.options.AssumeSecrets
	a.routing.Namespace = a.options.Namespace
	for _, object := range a.objects.Known {
		if !a.addOurs(object) && !a.addBuiltin(object) {
			a.addRoute(object)
		}
	}
}

func (a *analysis) addOurs(object runtime.Object) bool {
	c := &a.cluster
	switch object := object.(type) {
	case *millracev1beta1.VIPPool:
		c.Pools = append(c.Pools, *object)
	case *millracev1beta1.VIP:
		c.VIPs = append(c.VIPs, *object)
	case *millracev1beta1.LBPeer:
		c.Peers = append(c.Peers, *object)
	case *millracev1beta1.VIPAdvertisement:
		c.Advertisements = append(c.Advertisements, *object)
	case *millracev1beta1.VIPRoute:
		c.Routes = append(c.Routes, *object)
	case *millracev1beta1.LBNodeReport:
		c.Reports = append(c.Reports, *object)
	default:
		return false
	}
	return true
}

func (a *analysis) addBuiltin(object runtime.Object) bool {
	c, o := &a.cluster, &a.routing.Objects
	switch object := object.(type) {
	case *corev1.Service:
		c.Services, o.Services = append(c.Services, *object), append(o.Services, object)
	case *corev1.Node:
		c.Nodes = append(c.Nodes, *object)
	case *corev1.Namespace:
		c.Namespaces, o.Namespaces = append(c.Namespaces, *object), append(o.Namespaces, object)
	case *corev1.Secret:
		// Convert stringData as an API server does.
		for key, text := range object.StringData {
			if object.Data == nil {
				object.Data = map[string][]byte{}
			}
			object.Data[key] = []byte(text)
		}
		c.Secrets = append(c.Secrets, *object)
	case *corev1.ConfigMap:
		o.ConfigMaps = append(o.ConfigMaps, object)
	case *networkingv1.ServiceCIDR:
		c.ServiceCIDRs = append(c.ServiceCIDRs, *object)
	case *discoveryv1.EndpointSlice:
		a.slices = append(a.slices, *object)
		a.routing.EndpointSlices = append(a.routing.EndpointSlices, object)
	case *networkingv1.IngressClass:
		o.IngressClasses = append(o.IngressClasses, object)
	case *networkingv1.Ingress:
		o.Ingresses = append(o.Ingresses, object)
	default:
		return false
	}
	return true
}

func (a *analysis) addRoute(object runtime.Object) {
	o := &a.routing.Objects
	switch object := object.(type) {
	case *gatewayv1.GatewayClass:
		o.GatewayClasses = append(o.GatewayClasses, object)
	case *gatewayv1.Gateway:
		o.Gateways = append(o.Gateways, object)
	case *gatewayv1.ListenerSet:
		o.ListenerSets = append(o.ListenerSets, object)
	case *gatewayv1.HTTPRoute:
		o.HTTPRoutes = append(o.HTTPRoutes, object)
	case *gatewayv1.GRPCRoute:
		o.GRPCRoutes = append(o.GRPCRoutes, object)
	case *gatewayv1.TLSRoute:
		o.TLSRoutes = append(o.TLSRoutes, object)
	case *gatewayv1.TCPRoute:
		o.TCPRoutes = append(o.TCPRoutes, object)
	case *gatewayv1.UDPRoute:
		o.UDPRoutes = append(o.UDPRoutes, object)
	case *gatewayv1.ReferenceGrant:
		o.ReferenceGrants = append(o.ReferenceGrants, object)
	case *gatewayv1.BackendTLSPolicy:
		o.BackendTLSPolicies = append(o.BackendTLSPolicies, object)
	}
}

// addClasses adds the classes that are installed with the gateway, unless manifests have them.
func (a *analysis) addClasses() {
	const name = "millrace"
	o := &a.routing.Objects
	if !slices.ContainsFunc(o.IngressClasses, func(class *networkingv1.IngressClass) bool { return class.Name == name }) {
		o.IngressClasses = append(o.IngressClasses, &networkingv1.IngressClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IngressClassSpec{Controller: model.IngressController},
		})
	}
	if !slices.ContainsFunc(o.GatewayClasses, func(class *gatewayv1.GatewayClass) bool { return class.Name == name }) {
		o.GatewayClasses = append(o.GatewayClasses, &gatewayv1.GatewayClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: gatewayv1.GatewayClassSpec{ControllerName: model.GatewayController},
		})
	}
}

// endpoints ignores Services with a selector, whose pods do not exist yet.
func (a *analysis) endpoints(vips []millracev1beta1.VIP) {
	selecting := map[string]bool{}
	// Claims use the UIDs of the plan.
	services := slices.Clone(a.cluster.Services)
	for i := range services {
		services[i].UID = review.UIDOf(&services[i])
		selecting[services[i].Namespace+"/"+services[i].Name] = len(services[i].Spec.Selector) > 0
	}
	view := report.Build(&report.Input{Services: services, EndpointSlices: a.slices, VIPs: vips, Routes: a.cluster.Routes})
	for _, vip := range view.VIPs {
		for _, service := range vip.Services {
			if service.TrafficPolicy == "" || service.Ready > 0 || selecting[service.Namespace+"/"+service.Name] {
				continue
			}
			a.problem(desired.Object{Kind: "Service", Namespace: service.Namespace, Name: service.Name}, report.ReasonNoReadyEndpoint,
				fmt.Sprintf("it has no selector, and no EndpointSlice has a ready endpoint for %s: no node announces it", vip.Address))
		}
	}
}

func vipOf(object *millracev1beta1.VIP) VIP {
	vip := VIP{Allocation: report.Allocation{Address: object.Spec.Address, Pool: object.Spec.Pool}}
	for _, claim := range object.Spec.Claims {
		vip.Services = append(vip.Services, claim.Namespace+"/"+claim.Name)
	}
	return vip
}

func (a *analysis) ignoredKinds() string {
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(a.objects.Others)) {
		kinds = append(kinds, fmt.Sprintf("%s (%d)", kind, a.objects.Others[kind]))
	}
	if len(kinds) == 0 {
		return ""
	}
	return "ignored, because Millrace does not read these kinds: " + strings.Join(kinds, ", ")
}
