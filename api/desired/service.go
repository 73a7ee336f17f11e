// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Class selects the Services to which an operator assigns addresses.
type Class struct {
	// Name is the value of Service.spec.loadBalancerClass; empty means millrace.io/lb.
	Name string
	// IsDefault is true for the default load balancer, which also serves Services without a load balancer
	// class.
	IsDefault bool
}

// ParseClassName validates the name of a load balancer class as the API server does.
func ParseClassName(name string) error {
	if problems := validation.IsQualifiedName(name); len(problems) > 0 {
		return fmt.Errorf("%q is no load balancer class such as %s: %s", name, millracev1beta1.Class, strings.Join(problems, "; "))
	}
	return nil
}

// Serves reports whether the operator assigns addresses to a Service.
func (c Class) Serves(service *corev1.Service) bool {
	if service.Spec.Type != corev1.ServiceTypeLoadBalancer || service.DeletionTimestamp != nil {
		return false
	}
	class := service.Spec.LoadBalancerClass
	if class == nil {
		return c.IsDefault
	}
	return *class == cmp.Or(c.Name, millracev1beta1.Class)
}

// HasClassOfAddress reports whether a Service still has the load balancer class for which its address was
// assigned.
func HasClassOfAddress(service *corev1.Service) bool {
	class := service.Spec.LoadBalancerClass
	return service.Spec.Type == corev1.ServiceTypeLoadBalancer && class != nil &&
		service.Annotations[millracev1beta1.AnnotationClass] == *class
}
