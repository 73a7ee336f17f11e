// SPDX-License-Identifier: Apache-2.0

// Package controller implements the reconcilers of VIPs, VIPPools and Services around the pure packages.
package controller

// The operator's Leases, the ConfigMap of node ids, the Secret of the tunnel's key and the events of leader
// election are confined to its own namespace. Of Secrets it may create any there, because RBAC cannot limit
// that by name, and read and update that one.
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=services/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes;namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=list
// +kubebuilder:rbac:groups=networking.k8s.io,resources=servicecidrs,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=millrace.io,resources=vippools;lbpeers;vipadvertisements,verbs=get;list;watch
// +kubebuilder:rbac:groups=millrace.io,resources=vippools/status;lbpeers/status;vipadvertisements/status;vips/status;lbnodereports/status,verbs=patch
// +kubebuilder:rbac:groups=millrace.io,resources=vips,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=millrace.io,resources=lbnodes,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=millrace.io,resources=lbnodereports,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update,namespace=millrace-system
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;create;update,namespace=millrace-system
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch,namespace=millrace-system
// +kubebuilder:rbac:groups="",resources=secrets,resourceNames=millrace-tunnel-key,verbs=get;list;watch;update,namespace=millrace-system
// +kubebuilder:rbac:groups="",resources=secrets,verbs=create,namespace=millrace-system
