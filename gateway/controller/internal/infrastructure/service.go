// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

// targetUtilization is the autoscaler's target CPU utilization in percent of the request.
const targetUtilization = 60

func (p planner) serviceAccount() Object {
	no := false
	return &corev1.ServiceAccount{
		TypeMeta:                     metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta:                   p.metadata(),
		AutomountServiceAccountToken: &no,
	}
}

// configMap contains the controller's CAs, which the kubelet propagates into running pods.
func (p planner) configMap() Object {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: p.metadata(),
		Data:       map[string]string{CAKey: p.settings.CAs},
	}
}

func (p planner) service() Object {
	metadata := p.metadata()
	if pool := p.proxy.Parameters.Pool; pool != "" {
		metadata.Annotations[millracev1beta1.AnnotationPool] = pool
	}
	if addresses := p.addresses(); addresses != "" {
		metadata.Annotations[millracev1beta1.AnnotationAddresses] = addresses
	}
	if problems := p.certificateProblems(); len(problems) > 0 {
		metadata.Annotations[model.AnnotationCertificateProblems] = model.EncodeCertificateProblems(problems)
	}
	class, no := cmp.Or(p.settings.LoadBalancerClass, millracev1beta1.Class), false
	policy, families := p.families()
	service := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metadata,
		Spec: corev1.ServiceSpec{
			Type:                          corev1.ServiceTypeLoadBalancer,
			LoadBalancerClass:             &class,
			AllocateLoadBalancerNodePorts: &no,
			IPFamilyPolicy:                &policy,
			IPFamilies:                    families,
			Selector:                      p.selector(),
		},
	}
	for _, port := range p.proxy.Ports {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: port.Name, Port: port.VIP, TargetPort: intstr.FromInt32(port.Target), Protocol: port.Protocol,
		})
	}
	for _, frontend := range p.frontends {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: frontendName(frontend), Port: frontend.Port,
			TargetPort: intstr.FromString(noPort), Protocol: frontend.Protocol,
		})
	}
	return service
}

// certificateProblems returns the problems of the certificates that the owner's proxies serve.
func (p planner) certificateProblems() (found []model.CertificateProblem) {
	served := map[string]bool{}
	for _, each := range p.proxy.Resources {
		if each.GetCertificate() != nil {
			served[each.GetName()] = true
		}
	}
	for _, each := range p.settings.Certificates {
		if each.Problem != "" && served[model.CertificateName(each.Namespace, each.Name)] {
			found = append(found, model.CertificateProblem{Namespace: each.Namespace, Secret: each.Name, Message: each.Problem})
		}
	}
	return found
}

// families returns both IP families, or the single one of the requested addresses.
func (p planner) families() (corev1.IPFamilyPolicy, []corev1.IPFamily) {
	found := map[corev1.IPFamily]bool{}
	if slices.ContainsFunc(p.proxy.Addresses, func(a gatewayv1.GatewaySpecAddress) bool { return a.Value == "" }) {
		return corev1.IPFamilyPolicyPreferDualStack, nil
	}
	for text := range strings.SplitSeq(p.addresses(), ",") {
		if address, err := desired.ParseAddress(text); err == nil {
			family := corev1.IPv6Protocol
			if address.Is4() {
				family = corev1.IPv4Protocol
			}
			found[family] = true
		}
	}
	if len(found) != 1 {
		return corev1.IPFamilyPolicyPreferDualStack, nil
	}
	return corev1.IPFamilyPolicySingleStack, slices.Collect(maps.Keys(found))
}

func (p planner) addresses() string {
	var requested []string
	for _, address := range p.proxy.Addresses {
		isIP := address.Type == nil || *address.Type == gatewayv1.IPAddressType
		if isIP && address.Value != "" {
			requested = append(requested, address.Value)
		}
	}
	return cmp.Or(strings.Join(requested, ","), p.proxy.Parameters.Addresses)
}

func (p planner) disruptionBudget() Object {
	one, always := intstr.FromInt32(1), policyv1.AlwaysAllow
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "PodDisruptionBudget"},
		ObjectMeta: p.metadata(),
		Spec: policyv1.PodDisruptionBudgetSpec{
			// Not minAvailable, which would block draining the node of a single proxy.
			MaxUnavailable:             &one,
			UnhealthyPodEvictionPolicy: &always,
			Selector:                   &metav1.LabelSelector{MatchLabels: p.selector()},
		},
	}
}

func (p planner) autoscaler() Object {
	least, utilization := p.replicas(), int32(targetUtilization)
	return &autoscalingv2.HorizontalPodAutoscaler{
		TypeMeta:   metav1.TypeMeta{APIVersion: "autoscaling/v2", Kind: "HorizontalPodAutoscaler"},
		ObjectMeta: p.metadata(),
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
				APIVersion: "apps/v1", Kind: "Deployment", Name: p.at.Name,
			},
			MinReplicas: &least,
			MaxReplicas: p.proxy.Parameters.MaxReplicas,
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.ResourceMetricSourceType,
				Resource: &autoscalingv2.ResourceMetricSource{
					Name: corev1.ResourceCPU,
					Target: autoscalingv2.MetricTarget{
						Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &utilization,
					},
				},
			}},
		},
	}
}
