// SPDX-License-Identifier: Apache-2.0

package analysis

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/cmd/millrace/internal/manifests"
	"github.com/millrace-lb/millrace/gateway/nginx"
	"github.com/millrace-lb/millrace/gateway/route/model"
	"github.com/millrace-lb/millrace/gateway/route/parameters"
)

// IngressNginx returns the problems of ingress-nginx's Ingresses in classes of Millrace with the parameter
// annotations: ingress-nginx. Secrets are assumed to exist, and Services too if the manifests lack them.
func IngressNginx(objects *manifests.Objects, options Options) (*View, error) {
	a := &analysis{objects: objects, options: options}
	a.sort()
	a.moveClasses()
	view := &View{Objects: len(objects.Known), Remarks: objects.Remarks}
	if len(a.routing.Objects.Services) == 0 && len(a.routing.Objects.Ingresses) > 0 {
		a.assumeServices()
		view.Remarks = append(view.Remarks, "the manifests contain no Service: the Services of the Ingresses are assumed to exist")
	}
	a.refused()
	return view, a.finish(view)
}

// moveClasses replaces the controller of ingress-nginx's classes, and adds missing ones.
func (a *analysis) moveClasses() {
	const configMap = "millrace-migrate-ingress-nginx"
	o := &a.routing.Objects
	classes, hasDefault := map[string]*networkingv1.IngressClass{}, false
	for _, class := range o.IngressClasses {
		classes[class.Name] = class
		hasDefault = hasDefault || class.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true"
	}
	for _, ingress := range o.Ingresses {
		if ingress.Spec.IngressClassName == nil {
			annotated := ingress.Annotations[model.AnnotationIngressClass]
			if annotated == "" && hasDefault {
				continue
			}
			name := cmp.Or(annotated, "nginx")
			ingress.Spec.IngressClassName = &name
		}
		if name := *ingress.Spec.IngressClassName; classes[name] == nil {
			classes[name] = &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
			o.IngressClasses = append(o.IngressClasses, classes[name])
		}
	}
	scope := networkingv1.IngressClassParametersReferenceScopeNamespace
	for _, class := range classes {
		if class.Spec.Controller == "" || strings.Contains(class.Spec.Controller, "ingress-nginx") {
			class.Spec = networkingv1.IngressClassSpec{
				Controller: model.IngressController,
				Parameters: &networkingv1.IngressClassParametersReference{
					Kind: "ConfigMap", Name: configMap, Scope: &scope, Namespace: &a.options.Namespace,
				},
			}
		}
	}
	o.ConfigMaps = append(o.ConfigMaps, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: a.options.Namespace, Name: configMap},
		Data:       map[string]string{parameters.Annotations: "ingress-nginx"},
	})
}

// assumeServices adds the Services that Ingresses name as backends and in annotations.
func (a *analysis) assumeServices() {
	o := &a.routing.Objects
	known := map[[2]string]*corev1.Service{}
	add := func(namespace, name string, port networkingv1.ServiceBackendPort) {
		service := known[[2]string{namespace, name}]
		if service == nil {
			service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			known[[2]string{namespace, name}] = service
			o.Services = append(o.Services, service)
		}
		if !slices.ContainsFunc(service.Spec.Ports, func(of corev1.ServicePort) bool {
			return port.Name != "" && of.Name == port.Name || port.Name == "" && of.Port == port.Number
		}) {
			// Any unique number works for a named port; negative numbers cannot collide.
			number := cmp.Or(port.Number, -int32(len(service.Spec.Ports))-1)
			service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: port.Name, Port: number})
		}
	}
	addBackend := func(namespace string, backend *networkingv1.IngressBackend) {
		if backend != nil && backend.Service != nil {
			add(namespace, backend.Service.Name, backend.Service.Port)
		}
	}
	for _, ingress := range o.Ingresses {
		addBackend(ingress.Namespace, ingress.Spec.DefaultBackend)
		for _, rule := range ingress.Spec.Rules {
			for i := 0; rule.HTTP != nil && i < len(rule.HTTP.Paths); i++ {
				addBackend(ingress.Namespace, &rule.HTTP.Paths[i].Backend)
			}
		}
		settings, _ := nginx.Read(ingress.Annotations)
		if of := settings.External; of != nil && of.Service != "" {
			add(of.Namespace, of.Service, networkingv1.ServiceBackendPort{Number: of.Port})
		}
		if of := settings.Mirror; of != nil {
			add(of.Namespace, of.Service, networkingv1.ServiceBackendPort{Number: of.Port})
		}
	}
}
