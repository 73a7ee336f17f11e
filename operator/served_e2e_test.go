// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

func (e *environment) served(t *testing.T, service *corev1.Service, status metav1.ConditionStatus, reason, message string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, service); err != nil {
			return err
		}
		got := meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionServed)
		if got == nil || got.Status != status || got.Reason != reason || !strings.Contains(got.Message, message) {
			return fmt.Errorf("condition of Service %s = %+v, want %s %s %q", service.Name, got, status, reason, message)
		}
		if status == metav1.ConditionTrue {
			return nil
		}
		return e.warning(ctx, service, reason, message)
	})
}

func (e *environment) portErrors(t *testing.T, service *corev1.Service, want ...string) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, service); err != nil {
			return err
		}
		var got []string
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			for _, port := range ingress.Ports {
				text := fmt.Sprintf("%d/%s", port.Port, port.Protocol)
				if port.Error != nil {
					text += " " + *port.Error
				}
				got = append(got, text)
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("ports of Service %s = %q, want %q", service.Name, got, want)
		}
		return nil
	})
}

func (e *environment) advertisement(t *testing.T, name string, change func(*millracev1beta1.VIPAdvertisementSpec)) *millracev1beta1.VIPAdvertisement {
	t.Helper()
	advertisement := &millracev1beta1.VIPAdvertisement{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if change != nil {
		change(&advertisement.Spec)
	}
	must(t, e.client.Create(t.Context(), advertisement))
	return advertisement
}

func (e *environment) session(t *testing.T, name string, state millracev1beta1.SessionState) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := e.client.Create(t.Context(), node); !apierrors.IsAlreadyExists(err) {
		must(t, err)
	}
	report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: name}}
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, report); err != nil {
			return err
		}
		report.Status.Sessions = []millracev1beta1.SessionStatus{{Peer: "router", Address: "198.51.100.254", State: state}}
		return e.client.Status().Update(ctx, report)
	})
}

func servedOrNot(t *testing.T, e *environment) {
	e.run(t)
	e.session(t, "announcing", millracev1beta1.SessionEstablished)
	e.pool(t, "main", nil, "203.0.113.0/24")
	service := e.service(t, "web")
	e.served(t, service, metav1.ConditionFalse, millracev1beta1.ReasonNotSelected, "no VIPAdvertisement selects 203.0.113.0")
	gold := map[string]string{"tier": "gold"}
	advertisement := e.advertisement(t, "gold", func(spec *millracev1beta1.VIPAdvertisementSpec) {
		spec.ServiceSelector = &metav1.LabelSelector{MatchLabels: gold}
	})
	update(t, e, service, func(service *corev1.Service) { service.Labels = gold })
	e.served(t, service, metav1.ConditionTrue, millracev1beta1.ReasonServed, "")
	eventually(t, func(ctx context.Context) error { return e.event(ctx, service, millracev1beta1.ReasonServed, "") })
	must(t, e.client.Delete(t.Context(), advertisement))
	e.served(t, service, metav1.ConditionFalse, millracev1beta1.ReasonNotSelected, "no VIPAdvertisement selects 203.0.113.0")
	e.advertisement(t, "all", nil)
	e.served(t, service, metav1.ConditionTrue, millracev1beta1.ReasonServed, "")

	update(t, e, service, func(service *corev1.Service) { service.Spec.LoadBalancerSourceRanges = []string{"2001:db8::/32"} })
	e.served(t, service, metav1.ConditionFalse, millracev1beta1.ReasonInvalid, "no prefix has the family of 203.0.113.0")
	e.portErrors(t, service)
	update(t, e, service, func(service *corev1.Service) {
		service.Spec.LoadBalancerSourceRanges = nil
		service.Spec.Ports = []corev1.ServicePort{
			{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP},
			{Name: "sctp", Port: 3868, Protocol: corev1.ProtocolSCTP, TargetPort: intstr.FromInt32(13868)},
		}
	})
	e.served(t, service, metav1.ConditionFalse, millracev1beta1.ReasonUnsupported, "spec.ports[1].targetPort: 13868 differs from port 3868")
	e.portErrors(t, service, "80/TCP", "3868/SCTP millrace.io/Unsupported")
	update(t, e, service, func(service *corev1.Service) { service.Spec.Ports[1].TargetPort = intstr.FromInt32(3868) })
	e.served(t, service, metav1.ConditionTrue, millracev1beta1.ReasonServed, "")
	e.portErrors(t, service)

	e.session(t, "announcing", millracev1beta1.SessionIdle)
	e.served(t, service, metav1.ConditionFalse, millracev1beta1.ReasonNotAnnounced, "so no node announces 203.0.113.0")
	e.session(t, "announcing", millracev1beta1.SessionEstablished)
	e.served(t, service, metav1.ConditionTrue, millracev1beta1.ReasonServed, "")

	update(t, e, service, toClusterIP)
	e.bare(t, service)
}

// servedTogether covers port conflicts, and labels of one Service that select the shared address.
func servedTogether(t *testing.T, e *environment) {
	e.run(t)
	e.session(t, "announcing", millracev1beta1.SessionEstablished)
	e.pool(t, "main", nil, "203.0.113.0/24")
	e.advertisement(t, "gold", func(spec *millracev1beta1.VIPAdvertisementSpec) {
		spec.ServiceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}
	})
	first := e.service(t, "first", key("web"), ports("80/TCP"))
	e.addresses(t, first, "203.0.113.0")
	second := e.service(t, "second", key("web"), ports("443/TCP"))
	e.addresses(t, second, "203.0.113.0")
	e.served(t, second, metav1.ConditionFalse, millracev1beta1.ReasonNotSelected, "203.0.113.0")
	update(t, e, first, func(service *corev1.Service) { service.Labels = map[string]string{"tier": "gold"} })
	e.served(t, first, metav1.ConditionTrue, millracev1beta1.ReasonServed, "")
	e.served(t, second, metav1.ConditionTrue, millracev1beta1.ReasonServed, "")

	update(t, e, second, ports("80/TCP", "443/TCP"))
	e.served(t, second, metav1.ConditionFalse, millracev1beta1.ReasonPortConflict, "port 80/TCP of 203.0.113.0 belongs to Service shop/first")
	e.portErrors(t, second, "80/TCP millrace.io/PortConflict", "443/TCP")
	e.portErrors(t, first)
	must(t, e.client.Delete(t.Context(), first))
	e.portErrors(t, second)
}

func servedZones(t *testing.T, e *environment) {
	e.run(t)
	e.session(t, "announcing", millracev1beta1.SessionEstablished)
	e.pool(t, "main", nil, "203.0.113.0/24")
	e.advertisement(t, "all", nil)
	var nodes []*corev1.Node
	for i := range 7 {
		nodes = append(nodes, e.inZone(t, i))
	}
	service := e.service(t, "web", func(service *corev1.Service) {
		prefer := corev1.ServiceTrafficDistributionPreferClose
		service.Spec.TrafficDistribution = &prefer
	})
	e.served(t, service, metav1.ConditionTrue, millracev1beta1.ReasonServed, "")
	nodes = append(nodes, e.inZone(t, 7))
	e.served(t, service, metav1.ConditionTrue, millracev1beta1.ReasonServed, "the nodes are in 8 zones, at most 7 are supported")
	eventually(t, func(ctx context.Context) error {
		return e.event(ctx, service, millracev1beta1.ReasonServed, "the nodes are in 8 zones")
	})
	last := nodes[len(nodes)-1]
	must(t, e.client.Delete(t.Context(), &millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: last.Name}}))
	update(t, e, last, func(node *corev1.Node) { node.Labels = nil })
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, service); err != nil {
			return err
		}
		got := meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionServed)
		if got == nil || got.Message != "" {
			return fmt.Errorf("condition = %+v", got)
		}
		return nil
	})
}

// servedDuplicates checks that a host with a VIP's address is reported while a node finds it.
func servedDuplicates(t *testing.T, e *environment) {
	e.run(t)
	e.session(t, "announcing", millracev1beta1.SessionEstablished)
	e.pool(t, "main", nil, "203.0.113.0/24")
	e.advertisement(t, "all", nil)
	service := e.service(t, "web")
	e.served(t, service, metav1.ConditionTrue, millracev1beta1.ReasonServed, "")
	find := func(found ...millracev1beta1.DuplicateAddress) {
		t.Helper()
		report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: "announcing"}}
		eventually(t, func(ctx context.Context) error {
			if err := e.get(ctx, report); err != nil {
				return err
			}
			report.Status.Duplicates = found
			return e.client.Status().Update(ctx, report)
		})
	}
	vip := &millracev1beta1.VIP{ObjectMeta: metav1.ObjectMeta{Name: "203.0.113.0"}}
	unique := func(reason string) {
		t.Helper()
		eventually(t, func(ctx context.Context) error {
			if err := e.get(ctx, vip); err != nil {
				return err
			}
			got := meta.FindStatusCondition(vip.Status.Conditions, millracev1beta1.ConditionUnique)
			if reason == "" && got != nil || reason != "" && (got == nil || got.Status != metav1.ConditionFalse || got.Reason != reason) {
				return fmt.Errorf("condition of the VIP = %+v, want reason %q", got, reason)
			}
			return nil
		})
	}
	host := millracev1beta1.DuplicateAddress{Address: "203.0.113.0", Interface: "eth0", HardwareAddress: "02:00:00:00:00:09", Withheld: true}
	const reported = "02:00:00:00:00:09 on the network of eth0 of node announcing"
	find(host)
	unique(millracev1beta1.ReasonDuplicateAddress)
	e.served(t, service, metav1.ConditionFalse, millracev1beta1.ReasonDuplicateAddress, reported)
	host.Withheld = false
	find(host)
	unique(millracev1beta1.ReasonDuplicateInUse)
	e.served(t, service, metav1.ConditionFalse, millracev1beta1.ReasonDuplicateInUse, reported)
	find()
	unique("")
	e.served(t, service, metav1.ConditionTrue, millracev1beta1.ReasonServed, "")
}

// servedOnLinks checks that a VIP names the node that answers for it, and its Service missing links.
func servedOnLinks(t *testing.T, e *environment) {
	e.run(t)
	e.session(t, "answering", millracev1beta1.SessionIdle)
	e.pool(t, "main", nil, "203.0.113.0/24")
	e.advertisement(t, "lan", func(spec *millracev1beta1.VIPAdvertisementSpec) { spec.L2 = &millracev1beta1.L2Advertisement{} })
	service := e.service(t, "web")
	e.served(t, service, metav1.ConditionFalse, millracev1beta1.ReasonNoLink, "in a network that contains 203.0.113.0")
	eventually(t, func(ctx context.Context) error {
		return e.event(ctx, service, millracev1beta1.ReasonNoLink, "no node selected by VIPAdvertisement lan has an attached uplink")
	})
	node := &millracev1beta1.LBNode{ObjectMeta: metav1.ObjectMeta{Name: "answering"}}
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, node); err != nil {
			return err
		}
		node.Status.L2 = []millracev1beta1.L2Reach{{Advertisement: "lan", Networks: []string{"203.0.113.0/24"}}}
		return e.client.Status().Update(ctx, node)
	})
	e.served(t, service, metav1.ConditionTrue, millracev1beta1.ReasonServed, "")
	vip := &millracev1beta1.VIP{ObjectMeta: metav1.ObjectMeta{Name: "203.0.113.0"}}
	for _, answers := range []string{"answering", ""} {
		report := &millracev1beta1.LBNodeReport{ObjectMeta: metav1.ObjectMeta{Name: "answering"}}
		eventually(t, func(ctx context.Context) error {
			if err := e.get(ctx, report); err != nil {
				return err
			}
			if report.Status.L2VIPs = nil; answers != "" {
				report.Status.L2VIPs = []string{"203.0.113.0"}
			}
			return e.client.Status().Update(ctx, report)
		})
		eventually(t, func(ctx context.Context) error {
			if err := e.get(ctx, vip); err != nil {
				return err
			}
			if vip.Status.L2Node != answers {
				return fmt.Errorf("L2Node of the VIP = %q, want %q", vip.Status.L2Node, answers)
			}
			return nil
		})
	}
}

func (e *environment) inZone(t *testing.T, i int) *corev1.Node {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("zoned%d", i), Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprintf("zone%d", i)},
	}}
	must(t, e.client.Create(t.Context(), node))
	e.setAddresses(t, node, fmt.Sprintf("198.51.100.%d", i+1))
	return node
}

// contestedStatus runs another program that overwrites the status after each write.
func contestedStatus(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/24")
	e.advertisement(t, "all", nil)
	e.session(t, "announcing", millracev1beta1.SessionEstablished)
	service := e.service(t, "web")
	e.addresses(t, service, "203.0.113.0")
	answers := 0
	answer := func(ctx context.Context) error {
		if err := e.get(ctx, service); err != nil || ingress(service) == nil {
			return err
		}
		answers++
		service.Status.LoadBalancer.Ingress = nil
		return client.IgnoreNotFound(e.client.Status().Update(ctx, service))
	}
	eventually(t, func(ctx context.Context) error {
		if err := answer(ctx); err != nil && !apierrors.IsConflict(err) {
			return err
		}
		return e.warning(ctx, service, millracev1beta1.ReasonStatusConflict, "metadata.managedFields")
	})
	// Conflicts count as writes here, too.
	if answers > 20 {
		t.Errorf("%d status writes before the change was reported", answers)
	}
	e.served(t, service, metav1.ConditionFalse, millracev1beta1.ReasonStatusConflict, "")
}
