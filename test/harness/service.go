// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// Addresses returns the VIPs of a Service; a missing one is invalid.
func (c *Cluster) Addresses(ctx context.Context, namespace, name string) (ipv4, ipv6 netip.Addr, err error) {
	var service corev1.Service
	if err := c.Get(ctx, &service, "-n", namespace, "service", name); err != nil {
		return ipv4, ipv6, err
	}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		address, err := netip.ParseAddr(ingress.IP)
		if err != nil {
			return ipv4, ipv6, fmt.Errorf("service %s/%s: status.loadBalancer.ingress: %w", namespace, name, err)
		}
		if ingress.IPMode == nil || *ingress.IPMode != corev1.LoadBalancerIPModeVIP {
			return ipv4, ipv6, fmt.Errorf("service %s/%s: ipMode of %s is not VIP", namespace, name, address)
		}
		if address.Is4() {
			ipv4 = address
		} else {
			ipv6 = address
		}
	}
	return ipv4, ipv6, nil
}

// DualStack is Addresses for a Service that must have both.
func (c *Cluster) DualStack(ctx context.Context, namespace, name string) (ipv4, ipv6 netip.Addr, err error) {
	ipv4, ipv6, err = c.Addresses(ctx, namespace, name)
	if err == nil && (!ipv4.IsValid() || !ipv6.IsValid()) {
		err = fmt.Errorf("service %s/%s has addresses %v and %v, want one of each family", namespace, name, ipv4, ipv6)
	}
	return ipv4, ipv6, err
}

// AssignedCondition returns the Service's condition AddressAssigned.
func (c *Cluster) AssignedCondition(ctx context.Context, namespace, name string) (metav1.Condition, error) {
	var service corev1.Service
	if err := c.Get(ctx, &service, "-n", namespace, "service", name); err != nil {
		return metav1.Condition{}, err
	}
	condition := meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionAddressAssigned)
	if condition == nil {
		return metav1.Condition{}, fmt.Errorf("service %s/%s has no condition %s", namespace, name, millracev1beta1.ConditionAddressAssigned)
	}
	return *condition, nil
}

// AwaitForwarding checks that the maps of all nodes (Balanced) and router1's routes to the given nodes
// (from 1) match the live pods.
func (c *Cluster) AwaitForwarding(ctx context.Context, vip netip.Addr, namespace, selector string, nodes ...int) error {
	if err := c.RoutedTo(ctx, "router1", vip, nodes...); err != nil {
		return err
	}
	return c.Balanced(ctx, vip, namespace, selector)
}

// PodsByNode returns the number of ready pods of a selector per node.
func (c *Cluster) PodsByNode(ctx context.Context, namespace, selector string) (map[string]int, error) {
	pods, _, err := c.LivePods(ctx, namespace, selector)
	nodes := map[string]int{}
	for _, node := range pods {
		nodes[node]++
	}
	return nodes, err
}

// LivePods returns the ready, not terminating pods of a selector with their nodes, and the number of all
// pods.
func (c *Cluster) LivePods(ctx context.Context, namespace, selector string) (live map[string]string, all int, err error) {
	var pods corev1.PodList
	if err := c.Get(ctx, &pods, "-n", namespace, "pods", "-l", selector); err != nil {
		return nil, 0, err
	}
	live = map[string]string{}
	for _, pod := range pods.Items {
		if isLive(&pod) {
			live[pod.Name] = pod.Spec.NodeName
		}
	}
	return live, len(pods.Items), nil
}

func isLive(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil
		}
	}
	return false
}
