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
	"github.com/millrace-lb/millrace/gateway/route/model"
)

type gatewayState struct {
	// served reports whether it has ports, proxied whether some of them lead to proxies.
	served, proxied bool
	failed          error
	// requested are the requested static addresses, addresses the assigned ones.
	requested []string
	addresses []gatewayv1.GatewayStatusAddress
	// assigned is the AddressAssigned condition of the layer-4 operator, nil until it is set.
	assigned *metav1.Condition
	// available reports whether a proxy is available.
	available bool
}

func gatewayKey(namespace, name string) string {
	return infrastructure.Key(model.Object{Kind: "Gateway", Namespace: namespace, Name: name})
}

func gatewayStates(compiled *Compiled, live map[objectKey]client.Object, failed map[string]error) map[string]gatewayState {
	found := map[string]gatewayState{}
	for _, gateway := range compiled.Result.Statuses.Gateways {
		found[gatewayKey(gateway.Namespace, gateway.Name)] = gatewayState{}
	}
	for _, frontend := range compiled.Result.Frontends {
		found[infrastructure.Key(frontend.Gateway)] = gatewayState{served: true}
	}
	for _, proxy := range compiled.Result.Proxies {
		owner := infrastructure.Key(proxy.Owner)
		of := found[owner]
		of.proxied, of.failed = proxy.Listens(), failed[owner]
		of.served = of.served || len(proxy.Ports) > 0
		for _, address := range proxy.Addresses {
			if address.Value != "" {
				of.requested = append(of.requested, address.Value)
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
			of.available = object.Status.AvailableReplicas > 0
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

// has reports whether an address is assigned, comparing parsed addresses.
func (r gatewayState) has(text string) bool {
	address, err := netip.ParseAddr(text)
	return slices.ContainsFunc(r.addresses, func(a gatewayv1.GatewayStatusAddress) bool {
		got, problem := netip.ParseAddr(a.Value)
		return err == nil && problem == nil && got == address.Unmap()
	})
}

func (r gatewayState) missing() []string {
	var found []string
	for _, address := range r.requested {
		if !r.has(address) {
			found = append(found, address)
		}
	}
	return found
}

// unmet is the reason why a compiled Gateway is not programmed. The zero value means that it is.
type unmet struct {
	reason, message string
	// proxyOnly excludes layer-4 listeners.
	proxyOnly bool
}

// unmet returns the first unmet requirement.
func (r gatewayState) unmet() unmet {
	missing := r.missing()
	switch {
	case !r.served:
		return unmet{}
	case r.failed != nil:
		return unmet{reason: string(gatewayv1.GatewayReasonPending), message: r.failed.Error()}
	case len(missing) > 0 && r.assigned != nil && r.assigned.Status == metav1.ConditionFalse:
		return unmet{
			reason:  string(gatewayv1.GatewayReasonAddressNotUsable),
			message: "spec.addresses: " + strings.Join(missing, ", ") + ": " + r.assigned.Message,
		}
	case len(missing) > 0:
		return unmet{
			reason:  string(gatewayv1.GatewayReasonAddressNotAssigned),
			message: "spec.addresses: " + strings.Join(missing, ", ") + " is not assigned yet",
		}
	case len(r.addresses) == 0:
		return unmet{reason: string(gatewayv1.GatewayReasonAddressNotAssigned), message: r.noAddress()}
	case r.proxied && !r.available:
		return unmet{reason: string(gatewayv1.GatewayReasonPending), message: "no proxy is ready yet", proxyOnly: true}
	}
	return unmet{}
}

func (r gatewayState) noAddress() string {
	if r.assigned != nil && r.assigned.Message != "" {
		return "there is no VIP: " + r.assigned.Message
	}
	return "there is no VIP yet"
}

// pending replaces the reason by Pending, the one defined for listeners and ListenerSets.
func (l unmet) pending() unmet {
	if l.reason != "" {
		l.reason = string(gatewayv1.ListenerReasonPending)
	}
	return l
}

func (l unmet) ofListener(kinds []gatewayv1.RouteGroupKind) unmet {
	layer4 := slices.ContainsFunc(kinds, func(k gatewayv1.RouteGroupKind) bool { return k.Kind == "TCPRoute" || k.Kind == "UDPRoute" })
	if l.proxyOnly && layer4 {
		return unmet{}
	}
	return l.pending()
}

func setUnprogrammed(wanted []metav1.Condition, lacks unmet) []metav1.Condition {
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
