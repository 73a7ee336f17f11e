// SPDX-License-Identifier: Apache-2.0

package review

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func written(changes ...func(*corev1.Service)) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}},
			AllocateLoadBalancerNodePorts: ptr.To(true),
		},
	}
	for _, change := range changes {
		change(service)
	}
	return service
}

func class(name string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &name }
}

func nodePorts(wanted bool) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.AllocateLoadBalancerNodePorts = &wanted }
}

func of(kind corev1.ServiceType) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Type = kind }
}

func manages(operation metav1.ManagedFieldsOperationType, fields string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.ManagedFields = append(s.ManagedFields, metav1.ManagedFieldsEntry{Operation: operation, FieldsV1: metav1.NewFieldsV1(fields)})
	}
}

func TestDefaults(t *testing.T) {
	both := &State{Pools: []millracev1beta1.VIPPool{pool("public", "203.0.113.0/24", "2001:db8::/64")}}
	ours := Change{fieldClass, millracev1beta1.Class}
	off := Change{fieldNodePorts, false}
	dual := Change{fieldFamilies, corev1.IPFamilyPolicyPreferDualStack}
	policy := func(s *corev1.Service) { s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack) }
	const managed = `{"f:spec":{"f:allocateLoadBalancerNodePorts":{}}}`
	is := class(millracev1beta1.Class)
	for name, test := range map[string]struct {
		class           desired.Class
		service, before *corev1.Service
		state           *State
		want            []Change
		warned          bool
	}{
		"no fields set": {service: written(), want: []Change{ours, off, dual}},
		"operator of another class": {
			class: desired.Class{Name: "example.com/other"}, service: written(), want: []Change{{fieldClass, "example.com/other"}, off, dual},
		},
		"the class of another operator":        {class: desired.Class{Name: "example.com/other"}, service: written(is)},
		"only IPv4":                            {service: written(), state: state(), want: []Change{ours, off}},
		"other class":                          {service: written(class("example.com/other"))},
		"families":                             {service: written(func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }), want: []Change{ours, off}},
		"cluster IP set":                       {service: written(func(s *corev1.Service) { s.Spec.ClusterIP = "10.96.0.7" }), want: []Change{ours, off}},
		"family policy set":                    {service: written(policy), want: []Change{ours, off}},
		"node port set":                        {service: written(func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 31080 }), want: []Change{ours, dual}},
		"node ports disabled":                  {service: written(nodePorts(false)), want: []Change{ours, dual}},
		"server-side apply":                    {service: written(manages(metav1.ManagedFieldsOperationApply, managed)), want: []Change{ours, dual}},
		"managed by update":                    {service: written(manages(metav1.ManagedFieldsOperationUpdate, managed)), want: []Change{ours, off, dual}},
		"server-side apply without node ports": {service: written(manages(metav1.ManagedFieldsOperationApply, `{"f:spec":{"f:type":{}}}`)), want: []Change{ours, off, dual}},
		"disabled for the Service": {service: written(func(s *corev1.Service) {
			s.Labels = map[string]string{millracev1beta1.LabelServiceDefaults: millracev1beta1.ServiceDefaultsDisabled}
		})},
		"changed to a load balancer":             {service: written(policy), before: written(policy, of(corev1.ServiceTypeClusterIP)), want: []Change{ours, off}},
		"existing load balancer without a class": {service: written(), before: written()},
		"applied again":                          {service: written(), before: written(is, nodePorts(false)), want: []Change{ours, off}, warned: true},
		"sent again, with node ports":            {service: written(), before: written(is), want: []Change{ours}},
		"patched":                                {service: written(is), before: written(is, nodePorts(false))},
		"server-side apply again, with node ports": {
			service: written(manages(metav1.ManagedFieldsOperationApply, managed)), before: written(is, nodePorts(false)), want: []Change{ours},
		},
		"unchanged":     {service: written(is, nodePorts(false)), before: written(is, nodePorts(false))},
		"class removed": {service: written(), before: written(class("example.com/other"))},
	} {
		if test.state == nil {
			test.state = both
		}
		got, warnings := Defaults(test.class, Write{test.service, test.before}, nil, test.state)
		if !reflect.DeepEqual(got, test.want) || (len(warnings) > 0) != test.warned {
			t.Errorf("%s: %v, warnings %q, want %v", name, got, warnings, test.want)
		}
		again := test.service.DeepCopy()
		for _, change := range got {
			switch value := change.Value.(type) {
			case string:
				again.Spec.LoadBalancerClass = &value
			case bool:
				again.Spec.AllocateLoadBalancerNodePorts = &value
			case corev1.IPFamilyPolicy:
				again.Spec.IPFamilyPolicy = &value
			}
		}
		if got, warnings := Defaults(test.class, Write{again, test.before}, nil, test.state); len(got) > 0 || len(warnings) > 0 {
			t.Errorf("%s: second call changes %v with warnings %q", name, got, warnings)
		}
	}
}
