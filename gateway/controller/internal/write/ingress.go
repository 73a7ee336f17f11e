// SPDX-License-Identifier: Apache-2.0

package write

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/route/model"
)

func servicesOf(live map[objectKey]client.Object) map[string]*corev1.Service {
	found := map[string]*corev1.Service{}
	for _, object := range live {
		if service, ok := object.(*corev1.Service); ok {
			found[service.Annotations[infrastructure.AnnotationOwner]] = service
		}
	}
	return found
}

// writeIngresses writes addresses. An Ingress no longer served loses them if all are addresses of proxies.
func (w *Writer) writeIngresses(ctx context.Context, compiled *Compiled, services map[string]*corev1.Service) error {
	wanted := make(map[types.NamespacedName]*model.IngressStatus, len(compiled.Result.Ingresses))
	for i := range compiled.Result.Ingresses {
		status := &compiled.Result.Ingresses[i]
		wanted[types.NamespacedName{Namespace: status.Namespace, Name: status.Name}] = status
	}
	ours := addressesOf(services)
	var all batch
	for _, ingress := range compiled.Objects.Ingresses {
		status := wanted[client.ObjectKeyFromObject(ingress)]
		if status == nil && !hasOnly(ingress, ours) {
			continue
		}
		var points []networkingv1.IngressLoadBalancerIngress
		if status != nil {
			points = pointsOf(services[infrastructure.Key(status.Owner)], status.Ports)
		}
		all.do(func() error { return w.writeIngress(ctx, ingress, points) }, func(error) {})
	}
	return all.wait()
}

func addressesOf(services map[string]*corev1.Service) map[string]bool {
	found := map[string]bool{}
	for _, service := range services {
		for _, point := range service.Status.LoadBalancer.Ingress {
			found[point.IP] = true
		}
	}
	return found
}

func hasOnly(ingress *networkingv1.Ingress, addresses map[string]bool) bool {
	points := ingress.Status.LoadBalancer.Ingress
	for _, point := range points {
		if !addresses[point.IP] {
			return false
		}
	}
	return len(points) > 0
}

// pointsOf combines a Service's addresses with an Ingress's ports, and copies the Service's port errors.
func pointsOf(service *corev1.Service, ports []model.IngressPort) []networkingv1.IngressLoadBalancerIngress {
	if service == nil {
		return nil
	}
	var points []networkingv1.IngressLoadBalancerIngress
	for _, at := range service.Status.LoadBalancer.Ingress {
		point := networkingv1.IngressLoadBalancerIngress{IP: at.IP, Hostname: at.Hostname}
		for _, port := range ports {
			status := networkingv1.IngressPortStatus{Port: port.Number, Protocol: corev1.ProtocolTCP}
			for _, below := range at.Ports {
				if below.Port == port.Number && below.Protocol == corev1.ProtocolTCP {
					status.Error = below.Error
				}
			}
			if port.Error != "" && status.Error == nil {
				name := millracev1beta1.PortErrorPrefix + port.Error
				status.Error = &name
			}
			point.Ports = append(point.Ports, status)
		}
		points = append(points, point)
	}
	return points
}

func (w *Writer) writeIngress(ctx context.Context, compiled *networkingv1.Ingress, points []networkingv1.IngressLoadBalancerIngress) error {
	// The compiled object may be older than the last write.
	ingress := &networkingv1.Ingress{}
	err := w.Client.Get(ctx, client.ObjectKeyFromObject(compiled), ingress)
	if apierrors.IsNotFound(err) || err == nil && ingress.UID != compiled.UID {
		return nil
	}
	if err != nil {
		return err
	}
	isOurs := func(present client.Object) bool {
		ingress, is := present.(*networkingv1.Ingress)
		return is && equality.Semantic.DeepEqual(ingress.Status.LoadBalancer.Ingress, points)
	}
	changed := ingress.DeepCopy()
	changed.Status.LoadBalancer.Ingress = points
	return w.putStatus(ctx, ingress, changed, isOurs)
}
