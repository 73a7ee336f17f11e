// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 has the objects of the aggregated API live.millrace.io/v1alpha1: what agents
// measure and do at present. They are read only, and none of them is stored.
//
// +kubebuilder:object:generate=true
// +kubebuilder:skip
// +k8s:openapi-gen=true
// +k8s:openapi-model-package=io.millrace.live.v1alpha1
// +groupName=live.millrace.io
package v1alpha1
