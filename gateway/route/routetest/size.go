// SPDX-License-Identifier: Apache-2.0

package routetest

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route/model"
)

// Routes is the number of routes in a cluster of full size. Each route has two hosts and one certificate.
const (
	Routes         = 5000
	sizeNamespaces = 100
)

func sizeMeta(i int, kind string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: fmt.Sprintf("team-%d", i%sizeNamespaces), Name: fmt.Sprintf("%s-%d", kind, i), Generation: 1,
		UID: types.UID(fmt.Sprintf("%s-%d", kind, i)), ResourceVersion: "1",
		CreationTimestamp: metav1.NewTime(time.Unix(int64(1_700_000_000+i), 0)),
	}
}

// Hosts returns the hosts of the i-th route.
func Hosts(i int) [2]string {
	return [2]string{fmt.Sprintf("host-%d.example", i), fmt.Sprintf("other-%d.example", i)}
}

var sizeCertificates = sync.OnceValues(func() ([]*corev1.Secret, error) {
	secrets := make([]*corev1.Secret, Routes)
	for i := range secrets {
		hosts := Hosts(i)
		chain, key, err := Certificate(hosts[:]...)
		if err != nil {
			return nil, err
		}
		secrets[i] = &corev1.Secret{ObjectMeta: sizeMeta(i, "certificate"), Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{corev1.TLSCertKey: chain, corev1.TLSPrivateKeyKey: key}}
	}
	return secrets, nil
})

func sizeCommon() (*model.Objects, error) {
	secrets, err := sizeCertificates()
	if err != nil {
		return nil, err
	}
	objects := &model.Objects{Secrets: secrets}
	for i := range sizeNamespaces {
		objects.Namespaces = append(objects.Namespaces,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("team-%d", i)}})
	}
	for i := range Routes {
		objects.Services = append(objects.Services, &corev1.Service{ObjectMeta: sizeMeta(i, "service"),
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}})
	}
	return objects, nil
}

// Ingresses returns a class with one Ingress for each route.
func Ingresses() (*model.Objects, error) {
	objects, err := sizeCommon()
	if err != nil {
		return nil, err
	}
	class, prefix := "web", networkingv1.PathTypePrefix
	objects.IngressClasses = []*networkingv1.IngressClass{{ObjectMeta: metav1.ObjectMeta{Name: class},
		Spec: networkingv1.IngressClassSpec{Controller: model.IngressController}}}
	for i := range Routes {
		hosts := Hosts(i)
		ingress := &networkingv1.Ingress{ObjectMeta: sizeMeta(i, "ingress"), Spec: networkingv1.IngressSpec{
			IngressClassName: &class,
			TLS:              []networkingv1.IngressTLS{{Hosts: hosts[:], SecretName: fmt.Sprintf("certificate-%d", i)}},
		}}
		for _, host := range hosts {
			rule := networkingv1.IngressRule{Host: host}
			rule.HTTP = &networkingv1.HTTPIngressRuleValue{Paths: []networkingv1.HTTPIngressPath{{
				Path: "/", PathType: &prefix,
				Backend: networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{
					Name: fmt.Sprintf("service-%d", i), Port: networkingv1.ServiceBackendPort{Number: 80}}},
			}}}
			ingress.Spec.Rules = append(ingress.Spec.Rules, rule)
		}
		objects.Ingresses = append(objects.Ingresses, ingress)
	}
	return objects, nil
}

// Gateways returns a Gateway, and for each route a ListenerSet and an HTTPRoute that is attached to it and to
// the HTTP listener.
func Gateways() (*model.Objects, error) {
	objects, err := sizeCommon()
	if err != nil {
		return nil, err
	}
	objects.GatewayClasses = []*gatewayv1.GatewayClass{{ObjectMeta: metav1.ObjectMeta{Name: "millrace"},
		Spec: gatewayv1.GatewayClassSpec{ControllerName: model.GatewayController}}}
	all := gatewayv1.NamespacesFromAll
	objects.Gateways = []*gatewayv1.Gateway{{ObjectMeta: metav1.ObjectMeta{Namespace: "team-0", Name: "gw"},
		Spec: gatewayv1.GatewaySpec{
			GatewayClassName: "millrace",
			AllowedListeners: &gatewayv1.AllowedListeners{Namespaces: &gatewayv1.ListenerNamespaces{From: &all}},
			Listeners: []gatewayv1.Listener{{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType,
				AllowedRoutes: &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: &all}}}},
		}}}
	gatewayNamespace, setKind := gatewayv1.Namespace("team-0"), gatewayv1.Kind("ListenerSet")
	port := gatewayv1.PortNumber(80)
	for i := range Routes {
		set := &gatewayv1.ListenerSet{ObjectMeta: sizeMeta(i, "set")}
		set.Spec.ParentRef = gatewayv1.ParentGatewayReference{Name: "gw", Namespace: &gatewayNamespace}
		httpRoute := &gatewayv1.HTTPRoute{ObjectMeta: sizeMeta(i, "route")}
		httpRoute.Spec.ParentRefs = []gatewayv1.ParentReference{
			{Name: "gw", Namespace: &gatewayNamespace},
			{Name: gatewayv1.ObjectName(set.Name), Kind: &setKind},
		}
		for j, text := range Hosts(i) {
			host := gatewayv1.Hostname(text)
			set.Spec.Listeners = append(set.Spec.Listeners, gatewayv1.ListenerEntry{
				Name: gatewayv1.SectionName(fmt.Sprintf("l%d", j)), Hostname: &host, Port: 443, Protocol: gatewayv1.HTTPSProtocolType,
				TLS: &gatewayv1.ListenerTLSConfig{CertificateRefs: []gatewayv1.SecretObjectReference{
					{Name: gatewayv1.ObjectName(fmt.Sprintf("certificate-%d", i))}}},
			})
			httpRoute.Spec.Hostnames = append(httpRoute.Spec.Hostnames, host)
		}
		httpRoute.Spec.Rules = []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{{
			BackendRef: gatewayv1.BackendRef{BackendObjectReference: gatewayv1.BackendObjectReference{
				Name: gatewayv1.ObjectName(fmt.Sprintf("service-%d", i)), Port: &port}},
		}}}}
		objects.ListenerSets = append(objects.ListenerSets, set)
		objects.HTTPRoutes = append(objects.HTTPRoutes, httpRoute)
	}
	return objects, nil
}
