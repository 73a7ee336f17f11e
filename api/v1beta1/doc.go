// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 is the API of Millrace, group millrace.io. It is the only interface between the operator,
// which assigns addresses, and the agents, which announce and forward them. All kinds except VIPRoute are
// cluster-scoped.
//
// +kubebuilder:object:generate=true
// +groupName=millrace.io
package v1beta1
