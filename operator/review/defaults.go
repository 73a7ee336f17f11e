// SPDX-License-Identifier: Apache-2.0

package review

import (
	"cmp"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// A Change is a field of a Service with a new value.
type Change struct {
	// Field is relative to spec.
	Field string
	Value any
}

const (
	fieldClass     = "loadBalancerClass"
	fieldNodePorts = "allocateLoadBalancerNodePorts"
	fieldFamilies  = "ipFamilyPolicy"
)

// A Write is a write of a Service. Before is nil for a create.
type Write struct{ Service, Before *corev1.Service }

// Defaults returns the defaults for a Service of the class in a labeled namespace. It is idempotent. If it
// is unclear whether a user has set a field, it warns.
func Defaults(class desired.Class, write Write, namespace labels.Set, state *State) (changes []Change, warnings []string) {
	service, before := write.Service, write.Before
	name := cmp.Or(class.Name, millracev1beta1.Class)
	// The class is immutable once the Service is a load balancer.
	begins := before == nil || before.Spec.Type != corev1.ServiceTypeLoadBalancer
	// A Service without its class was sent as a whole (PUT): a patch would keep the class.
	again := !begins && service.Spec.LoadBalancerClass == nil && desired.Class{Name: name}.Serves(before)
	if !concerns(name, service, begins || again) {
		return nil, nil
	}
	if service.Spec.LoadBalancerClass == nil {
		changes = append(changes, Change{fieldClass, name})
	}
	if usesDefaultNodePorts(service) && (begins || again && isFalse(before.Spec.AllocateLoadBalancerNodePorts)) {
		changes = append(changes, Change{fieldNodePorts, false})
		if again {
			warnings = append(warnings, "spec."+fieldNodePorts+": remains false, because the Service was replaced without its class in a namespace with the label "+
				millracev1beta1.LabelServiceDefaults+": to allocate node ports, patch the field, or set a nodePort")
		}
	}
	if before == nil && usesDefaultFamilies(service) && hasBoth(service, namespace, state) {
		changes = append(changes, Change{fieldFamilies, corev1.IPFamilyPolicyPreferDualStack})
	}
	return changes, warnings
}

func concerns(name string, service *corev1.Service, mayGetClass bool) bool {
	if service.Labels[millracev1beta1.LabelServiceDefaults] == millracev1beta1.ServiceDefaultsDisabled {
		return false
	}
	class := service.Spec.LoadBalancerClass
	return class == nil && mayGetClass || class != nil && *class == name
}

// usesDefaultNodePorts reports whether no user has decided about node ports.
func usesDefaultNodePorts(service *corev1.Service) bool {
	return !isFalse(service.Spec.AllocateLoadBalancerNodePorts) && !namesNodePort(service) && !setsNodePorts(service)
}

func isFalse(value *bool) bool { return value != nil && !*value }

func namesNodePort(service *corev1.Service) bool {
	for _, port := range service.Spec.Ports {
		if port.NodePort != 0 {
			return true
		}
	}
	return false
}

// setsNodePorts reads managed fields or the annotation of kubectl apply, because the API server defaults
// the field before webhooks run.
func setsNodePorts(service *corev1.Service) bool {
	for _, entry := range service.ManagedFields {
		if entry.Operation == metav1.ManagedFieldsOperationApply && entry.FieldsV1 != nil &&
			hasField(entry.FieldsV1.GetRawBytes(), "f:spec", "f:"+fieldNodePorts) {
			return true
		}
	}
	return hasField([]byte(service.Annotations[corev1.LastAppliedConfigAnnotation]), "spec", fieldNodePorts)
}

func hasField(content []byte, object, field string) bool {
	var all map[string]json.RawMessage
	var fields map[string]json.RawMessage
	if json.Unmarshal(content, &all) != nil || json.Unmarshal(all[object], &fields) != nil {
		return false
	}
	_, found := fields[field]
	return found
}

func usesDefaultFamilies(service *corev1.Service) bool {
	return service.Spec.IPFamilyPolicy == nil && len(service.Spec.IPFamilies) == 0 &&
		service.Spec.ClusterIP == "" && len(service.Spec.ClusterIPs) == 0
}

// hasBoth reports whether a Service with both families would get an address of each.
func hasBoth(service *corev1.Service, namespace labels.Set, state *State) bool {
	both := service.DeepCopy()
	both.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	plan, err := plan(both, namespace, state)
	return err == nil && len(plan.Refusals) == 0 && len(plan.Addresses) == len(both.Spec.IPFamilies)
}
