// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 defines the objects of the aggregated API live.millrace.io/v1alpha1: the current
// measurements and state of agents. They are read-only and not stored.
//
// +kubebuilder:object:generate=true
// +kubebuilder:skip
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.millrace.live.v1alpha1
// +groupName=live.millrace.io
package v1alpha1
