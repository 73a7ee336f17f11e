// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestNodeAddresses(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "node1"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.1"},
		{Type: corev1.NodeInternalIP, Address: "2001:DB8:0::1"}, {Type: corev1.NodeInternalIP, Address: "nonsense"},
		{Type: corev1.NodeInternalIP, Address: "198.51.100.1"}, {Type: corev1.NodeInternalIP, Address: "198.51.100.2"},
		{Type: corev1.NodeInternalIP, Address: "2001:db8::2"},
	}}}
	if got := NodeAddresses(node); !reflect.DeepEqual(got, []string{"2001:db8::1", "198.51.100.1"}) {
		t.Errorf("NodeAddresses = %v", got)
	}
}

func TestNodePodCIDRs(t *testing.T) {
	node := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{
		"nonsense", "198.18.1.7/24", "2001:DB8:100::/64", "198.18.2.0/24", "::ffff:198.18.0.0/112",
	}}}
	if got := NodePodCIDRs(node); !reflect.DeepEqual(got, []string{"198.18.1.0/24", "2001:db8:100::/64"}) {
		t.Errorf("NodePodCIDRs = %v", got)
	}
}
