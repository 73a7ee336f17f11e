// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 is the API of Millrace, group millrace.io: the only contract
// between the operator, which owns addresses, and the agents, which forward
// and announce them. All kinds are cluster-scoped.
//
// +kubebuilder:object:generate=true
// +groupName=millrace.io
package v1beta1
