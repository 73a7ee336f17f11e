// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route"
)

// kind is one that is compiled.
type kind struct {
	object client.Object
	// read adds all objects of the kind to those that are compiled.
	read func(ctx context.Context, reader client.Reader, objects *route.Objects) error
}

// builtin are the kinds that every cluster has.
func builtin() []kind {
	return []kind{
		read(&networkingv1.IngressClass{}, &networkingv1.IngressClassList{},
			func(l *networkingv1.IngressClassList, o *route.Objects) { o.IngressClasses = pointers(l.Items) }),
		read(&networkingv1.Ingress{}, &networkingv1.IngressList{},
			func(l *networkingv1.IngressList, o *route.Objects) { o.Ingresses = pointers(l.Items) }),
		read(&corev1.Service{}, &corev1.ServiceList{},
			func(l *corev1.ServiceList, o *route.Objects) { o.Services = pointers(l.Items) }),
		read(&corev1.Namespace{}, &corev1.NamespaceList{},
			func(l *corev1.NamespaceList, o *route.Objects) { o.Namespaces = pointers(l.Items) }),
		read(&corev1.Secret{}, &corev1.SecretList{},
			func(l *corev1.SecretList, o *route.Objects) { o.Secrets = pointers(l.Items) }),
		read(&corev1.ConfigMap{}, &corev1.ConfigMapList{},
			func(l *corev1.ConfigMapList, o *route.Objects) { o.ConfigMaps = pointers(l.Items) }),
	}
}

// gatewayAPI are the kinds of Gateway API by name: a cluster has some of them, or none.
func gatewayAPI() map[string]kind {
	return map[string]kind{
		"GatewayClass": read(&gatewayv1.GatewayClass{}, &gatewayv1.GatewayClassList{},
			func(l *gatewayv1.GatewayClassList, o *route.Objects) { o.GatewayClasses = pointers(l.Items) }),
		"Gateway": read(&gatewayv1.Gateway{}, &gatewayv1.GatewayList{},
			func(l *gatewayv1.GatewayList, o *route.Objects) { o.Gateways = pointers(l.Items) }),
		"ListenerSet": read(&gatewayv1.ListenerSet{}, &gatewayv1.ListenerSetList{},
			func(l *gatewayv1.ListenerSetList, o *route.Objects) { o.ListenerSets = pointers(l.Items) }),
		"HTTPRoute": read(&gatewayv1.HTTPRoute{}, &gatewayv1.HTTPRouteList{},
			func(l *gatewayv1.HTTPRouteList, o *route.Objects) { o.HTTPRoutes = pointers(l.Items) }),
		"GRPCRoute": read(&gatewayv1.GRPCRoute{}, &gatewayv1.GRPCRouteList{},
			func(l *gatewayv1.GRPCRouteList, o *route.Objects) { o.GRPCRoutes = pointers(l.Items) }),
		"TLSRoute": read(&gatewayv1.TLSRoute{}, &gatewayv1.TLSRouteList{},
			func(l *gatewayv1.TLSRouteList, o *route.Objects) { o.TLSRoutes = pointers(l.Items) }),
		"TCPRoute": read(&gatewayv1.TCPRoute{}, &gatewayv1.TCPRouteList{},
			func(l *gatewayv1.TCPRouteList, o *route.Objects) { o.TCPRoutes = pointers(l.Items) }),
		"UDPRoute": read(&gatewayv1.UDPRoute{}, &gatewayv1.UDPRouteList{},
			func(l *gatewayv1.UDPRouteList, o *route.Objects) { o.UDPRoutes = pointers(l.Items) }),
		"ReferenceGrant": read(&gatewayv1.ReferenceGrant{}, &gatewayv1.ReferenceGrantList{},
			func(l *gatewayv1.ReferenceGrantList, o *route.Objects) { o.ReferenceGrants = pointers(l.Items) }),
		"BackendTLSPolicy": read(&gatewayv1.BackendTLSPolicy{}, &gatewayv1.BackendTLSPolicyList{},
			func(l *gatewayv1.BackendTLSPolicyList, o *route.Objects) { o.BackendTLSPolicies = pointers(l.Items) }),
	}
}

// read makes a kind from an empty object, an empty list, and where its objects go. They are
// those of the cache: nobody may change them.
func read[L client.ObjectList](object client.Object, empty L, add func(L, *route.Objects)) kind {
	return kind{object: object, read: func(ctx context.Context, reader client.Reader, objects *route.Objects) error {
		list := empty.DeepCopyObject().(L)
		if err := reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list objects like %T: %w", object, err)
		}
		add(list, objects)
		return nil
	}}
}

func pointers[T any](items []T) []*T {
	all := make([]*T, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return all
}
