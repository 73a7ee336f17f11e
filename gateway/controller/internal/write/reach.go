// SPDX-License-Identifier: Apache-2.0

package write

import (
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/gateway/controller/internal/infrastructure"
	"github.com/millrace-lb/millrace/gateway/controller/internal/refusal"
	"github.com/millrace-lb/millrace/gateway/route"
)

// reach is what the cluster has made of a Gateway.
type reach struct {
	// served says that it has ports, proxied that some of them lead to proxies.
	served, proxied bool
	// failed is why objects cannot be made for it, or nil.
	failed error
	// asked are the static addresses, addresses those that it has.
	asked     []string
	addresses []gatewayv1.GatewayStatusAddress
	// assigned is the layer-4 operator's condition about addresses; nil before it has one.
	assigned *metav1.Condition
	// available says that a proxy is there.
	available bool
	// refused is what a proxy says of its configuration.
	refused refusal.Refusal
}

// gatewayKey is the owner's key of a Gateway.
func gatewayKey(namespace, name string) string {
	return infrastructure.Key(route.Object{Kind: "Gateway", Namespace: namespace, Name: name})
}

// reaches are those of all owners.
func reaches(compiled *Compiled, live map[place]client.Object, failed map[string]error) map[string]reach {
	found := map[string]reach{}
	for _, gateway := range compiled.Result.Statuses.Gateways {
		found[gatewayKey(gateway.Namespace, gateway.Name)] = reach{}
	}
	for _, frontend := range compiled.Result.Frontends {
		found[infrastructure.Key(frontend.Gateway)] = reach{served: true}
	}
	for _, proxy := range compiled.Result.Proxies {
		owner := infrastructure.Key(proxy.Owner)
		of := found[owner]
		of.proxied, of.failed = proxy.Listens(), failed[owner]
		of.served = of.served || len(proxy.Ports) > 0
		for _, address := range proxy.Addresses {
			if address.Value != "" {
				of.asked = append(of.asked, address.Value)
			}
		}
		found[owner] = of
	}
	for _, object := range live {
		owner := object.GetAnnotations()[infrastructure.AnnotationOwner]
		of, known := found[owner]
		if !known {
			continue
		}
		switch object := object.(type) {
		case *corev1.Service:
			of.addresses = statusAddresses(object)
			of.assigned = meta.FindStatusCondition(object.Status.Conditions, millracev1beta1.ConditionAddressAssigned)
		case *appsv1.Deployment:
			of.available, of.refused = object.Status.AvailableReplicas > 0, refusal.Read(object)
		}
		found[owner] = of
	}
	return found
}

func statusAddresses(service *corev1.Service) []gatewayv1.GatewayStatusAddress {
	var found []gatewayv1.GatewayStatusAddress
	kind := gatewayv1.IPAddressType
	for _, point := range service.Status.LoadBalancer.Ingress {
		if _, err := netip.ParseAddr(point.IP); err == nil {
			found = append(found, gatewayv1.GatewayStatusAddress{Type: &kind, Value: point.IP})
		}
	}
	return found
}

// has reports whether an address is there, however it is written.
func (r reach) has(text string) bool {
	asked, err := netip.ParseAddr(text)
	return slices.ContainsFunc(r.addresses, func(a gatewayv1.GatewayStatusAddress) bool {
		got, problem := netip.ParseAddr(a.Value)
		return err == nil && problem == nil && got == asked.Unmap()
	})
}

// missing are the addresses that are asked for and not there.
func (r reach) missing() []string {
	var found []string
	for _, address := range r.asked {
		if !r.has(address) {
			found = append(found, address)
		}
	}
	return found
}

// lack is why what is compiled does not work yet. The zero value is none.
type lack struct {
	reason, message string
	// proxyOnly says that listeners of layer 4 lack nothing.
	proxyOnly bool
}

// lacks finds the first thing that a Gateway lacks.
func (r reach) lacks() lack {
	missing := r.missing()
	switch {
	case !r.served:
		return lack{}
	case r.failed != nil:
		return lack{reason: string(gatewayv1.GatewayReasonPending), message: r.failed.Error()}
	case len(missing) > 0 && r.assigned != nil && r.assigned.Status == metav1.ConditionFalse:
		return lack{
			reason:  string(gatewayv1.GatewayReasonAddressNotUsable),
			message: "spec.addresses: " + strings.Join(missing, ", ") + ": " + r.assigned.Message,
		}
	case len(missing) > 0:
		return lack{
			reason:  string(gatewayv1.GatewayReasonAddressNotAssigned),
			message: "spec.addresses: " + strings.Join(missing, ", ") + " is not there yet",
		}
	case len(r.addresses) == 0:
		return lack{reason: string(gatewayv1.GatewayReasonAddressNotAssigned), message: r.noAddress()}
	case r.proxied && !r.available:
		return lack{reason: string(gatewayv1.GatewayReasonPending), message: "no proxy is ready yet", proxyOnly: true}
	case r.proxied && r.refused.Whole():
		return lack{reason: route.ReasonConfigurationRefused, message: r.refused.Text(), proxyOnly: true}
	}
	return lack{}
}

func (r reach) noAddress() string {
	if r.assigned != nil && r.assigned.Message != "" {
		return "there is no VIP: " + r.assigned.Message
	}
	return "there is no VIP yet"
}

// pending is the lack with the reason that listeners and ListenerSets have for any.
func (l lack) pending() lack {
	if l.reason != "" {
		l.reason = string(gatewayv1.ListenerReasonPending)
	}
	return l
}

// ofListener is what a listener lacks that takes routes of some kinds.
func (l lack) ofListener(kinds []gatewayv1.RouteGroupKind) lack {
	layer4 := slices.ContainsFunc(kinds, func(k gatewayv1.RouteGroupKind) bool { return k.Kind == "TCPRoute" || k.Kind == "UDPRoute" })
	if l.proxyOnly && layer4 {
		return lack{}
	}
	return l.pending()
}

// lowered are conditions in which Programmed is false for what is lacking.
func lowered(wanted []metav1.Condition, lacks lack) []metav1.Condition {
	programmed := meta.FindStatusCondition(wanted, string(gatewayv1.GatewayConditionProgrammed))
	if lacks.reason == "" || programmed == nil || programmed.Status != metav1.ConditionTrue {
		return wanted
	}
	changed := slices.Clone(wanted)
	for i := range changed {
		if changed[i].Type == programmed.Type {
			changed[i].Status, changed[i].Reason, changed[i].Message = metav1.ConditionFalse, lacks.reason, lacks.message
		}
	}
	return changed
}
