// SPDX-License-Identifier: Apache-2.0

package desired

import (
	corev1 "k8s.io/api/core/v1"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
)

// Serves reports whether Millrace has to give a Service addresses:
// Service.spec.loadBalancerClass is ours or, for the default load balancer of
// the cluster, absent.
func Serves(service *corev1.Service, isDefault bool) bool {
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer || service.DeletionTimestamp != nil {
		return false
	}
	class := service.Spec.LoadBalancerClass
	if class == nil {
		return isDefault
	}
	return *class == millracev1alpha1.Class
}
