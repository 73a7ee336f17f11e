// SPDX-License-Identifier: Apache-2.0

package source

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/gateway/route/model"
)

type kind struct {
	object client.Object
	read   func(indexer toolscache.Indexer, objects *model.Objects)
	// indexer is set while the kind is watched.
	indexer toolscache.Indexer
}

func builtin() []kind {
	return []kind{
		read(&networkingv1.IngressClass{}, func(o *model.Objects) *[]*networkingv1.IngressClass { return &o.IngressClasses }),
		read(&networkingv1.Ingress{}, func(o *model.Objects) *[]*networkingv1.Ingress { return &o.Ingresses }),
		read(&corev1.Service{}, func(o *model.Objects) *[]*corev1.Service { return &o.Services }),
		read(&corev1.Namespace{}, func(o *model.Objects) *[]*corev1.Namespace { return &o.Namespaces }),
		read(&corev1.ConfigMap{}, func(o *model.Objects) *[]*corev1.ConfigMap { return &o.ConfigMaps }),
	}
}

// gatewayAPI returns the Gateway API kinds by name. A cluster may lack any of them.
func gatewayAPI() map[string]kind {
	return map[string]kind{
		"GatewayClass":     read(&gatewayv1.GatewayClass{}, func(o *model.Objects) *[]*gatewayv1.GatewayClass { return &o.GatewayClasses }),
		"Gateway":          read(&gatewayv1.Gateway{}, func(o *model.Objects) *[]*gatewayv1.Gateway { return &o.Gateways }),
		"ListenerSet":      read(&gatewayv1.ListenerSet{}, func(o *model.Objects) *[]*gatewayv1.ListenerSet { return &o.ListenerSets }),
		"HTTPRoute":        read(&gatewayv1.HTTPRoute{}, func(o *model.Objects) *[]*gatewayv1.HTTPRoute { return &o.HTTPRoutes }),
		"GRPCRoute":        read(&gatewayv1.GRPCRoute{}, func(o *model.Objects) *[]*gatewayv1.GRPCRoute { return &o.GRPCRoutes }),
		"TLSRoute":         read(&gatewayv1.TLSRoute{}, func(o *model.Objects) *[]*gatewayv1.TLSRoute { return &o.TLSRoutes }),
		"TCPRoute":         read(&gatewayv1.TCPRoute{}, func(o *model.Objects) *[]*gatewayv1.TCPRoute { return &o.TCPRoutes }),
		"UDPRoute":         read(&gatewayv1.UDPRoute{}, func(o *model.Objects) *[]*gatewayv1.UDPRoute { return &o.UDPRoutes }),
		"ReferenceGrant":   read(&gatewayv1.ReferenceGrant{}, func(o *model.Objects) *[]*gatewayv1.ReferenceGrant { return &o.ReferenceGrants }),
		"BackendTLSPolicy": read(&gatewayv1.BackendTLSPolicy{}, func(o *model.Objects) *[]*gatewayv1.BackendTLSPolicy { return &o.BackendTLSPolicies }),
	}
}

// read selects the kind's field in Objects. The cache owns the objects: they must not be modified, and
// unchanged ones keep their pointer.
func read[T client.Object](object T, list func(*model.Objects) *[]T) kind {
	return kind{object: object, read: func(indexer toolscache.Indexer, objects *model.Objects) {
		items := indexer.List()
		all := make([]T, 0, len(items))
		for _, item := range items {
			if found, is := item.(T); is {
				all = append(all, found)
			}
		}
		*list(objects) = all
	}}
}
