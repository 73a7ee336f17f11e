// SPDX-License-Identifier: Apache-2.0

// Package controller reconciles the objects of the cluster with the plans of
// the pure packages: get, plan, patch.
package controller

// What the operator may do in the cluster. Leases and the events of leader
// election are confined to its own namespace.
//
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=services/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes;namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=millrace.io,resources=ippools;bgppeers;bgpadvertisements,verbs=get;list;watch
// +kubebuilder:rbac:groups=millrace.io,resources=ippools/status;bgppeers/status;bgpadvertisements/status;vips/status,verbs=patch
// +kubebuilder:rbac:groups=millrace.io,resources=vips,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=millrace.io,resources=lbnodes,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update,namespace=millrace-system
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch,namespace=millrace-system
