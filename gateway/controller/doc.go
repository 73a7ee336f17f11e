// SPDX-License-Identifier: Apache-2.0

// Package controller implements the gateway's control plane: it compiles Ingresses and Gateway API objects
// into proxy configurations and distributes these to the proxies.
//
//	source ──► route.Compile ──► distribution/server ──► proxies
//	                 │                   ▲
//	                 ▼                   └── authentication: maps a token to an owner's proxies
//	               write: infrastructure, VIPRoutes, statuses, events (leader only)
//
// Every replica compiles and distributes; only the leader writes to the API server. Proxies keep serving
// their last configuration while no replica is reachable.
package controller

// Cluster-wide permissions of the controller. The namespaced ones, on Secrets and on the proxies' objects,
// are in config/rbac/gateway/namespace_roles.yaml.
//
// +kubebuilder:rbac:groups=networking.k8s.io,resources=ingresses;ingressclasses,verbs=get;list;watch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=ingresses/status,verbs=patch
// +kubebuilder:rbac:groups=gateway.networking.k8s.io,resources=gatewayclasses;gateways;listenersets;httproutes;grpcroutes;tlsroutes;tcproutes;udproutes;referencegrants;backendtlspolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=gateway.networking.k8s.io,resources=gatewayclasses/status;gateways/status;listenersets/status;httproutes/status;grpcroutes/status;tlsroutes/status;tcproutes/status;udproutes/status;backendtlspolicies/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=namespaces;pods;services;configmaps;serviceaccounts,verbs=get;list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch
// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=get;list;watch
// +kubebuilder:rbac:groups=millrace.io,resources=viproutes,verbs=get;list;watch
// +kubebuilder:rbac:groups=rbac.authorization.k8s.io,resources=rolebindings,resourceNames=millrace-gateway-secrets,verbs=get;list
// +kubebuilder:rbac:groups=apiextensions.k8s.io,resources=customresourcedefinitions,resourceNames=gatewayclasses.gateway.networking.k8s.io,verbs=get
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews;selfsubjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update,namespace=millrace-system
// RBAC cannot restrict create by resource name.
// +kubebuilder:rbac:groups="",resources=secrets,verbs=create,namespace=millrace-system
// +kubebuilder:rbac:groups="",resources=secrets,resourceNames=millrace-gateway;millrace-proxy-metrics,verbs=get;update,namespace=millrace-system
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch,namespace=millrace-system
