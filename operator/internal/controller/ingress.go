// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/validation"
)

// heldAddresses records the addresses that Services have had since the process started, so that the status
// entry of a deleted VIP is not mistaken for another load balancer's. Only the worker that holds the lock
// uses it.
type heldAddresses map[types.NamespacedName]*heldEntry

type heldEntry struct {
	uid       types.UID
	addresses map[netip.Addr]struct{}
}

func (h heldAddresses) record(key types.NamespacedName, uid types.UID, addresses ...netip.Addr) {
	of := h[key]
	if of == nil || of.uid != uid {
		of = &heldEntry{uid: uid, addresses: map[netip.Addr]struct{}{}}
		h[key] = of
	}
	for _, address := range addresses {
		of.addresses[address] = struct{}{}
	}
}

func (h heldAddresses) has(key types.NamespacedName, uid types.UID, address netip.Addr) bool {
	of := h[key]
	if of == nil || of.uid != uid {
		return false
	}
	_, ok := of.addresses[address]
	return ok
}

func (h heldAddresses) hasAny(key types.NamespacedName, uid types.UID) bool {
	of := h[key]
	return of != nil && of.uid == uid && len(of.addresses) > 0
}

// refreshUnclaimed reads the VIPs of addresses in a Service's status without a claim in the VIP cache,
// because the watch of VIPs may lag behind another operator's assignment. A status already reported as
// foreign is not read again.
func (r *serviceReconciler) refreshUnclaimed(ctx context.Context, service *corev1.Service) error {
	assigned := meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionAddressAssigned)
	if assigned != nil && assigned.Reason == millracev1beta1.ReasonForeignAddress {
		return nil
	}
	mine := claimsWithUID(service.Namespace, service.Name, service.UID)
	for _, entry := range service.Status.LoadBalancer.Ingress {
		address, err := desired.ParseAddress(entry.IP)
		if err != nil {
			continue
		}
		if vip := r.vips.object(address); vip != nil && slices.ContainsFunc(vip.Spec.Claims, mine) {
			continue
		}
		if err := r.refresh(ctx, address); err != nil {
			return err
		}
	}
	return nil
}

// foreignIngress returns the status entries that ours rejects or that have no valid IP address.
func foreignIngress(service *corev1.Service, ours func(netip.Addr) bool) []corev1.LoadBalancerIngress {
	return slices.DeleteFunc(slices.Clone(service.Status.LoadBalancer.Ingress), func(entry corev1.LoadBalancerIngress) bool {
		address, err := desired.ParseAddress(entry.IP)
		return err == nil && ours(address)
	})
}

func namesOf(entries []corev1.LoadBalancerIngress) string {
	var names []string
	for _, entry := range entries[:min(len(entries), control.MaxNamed)] {
		names = append(names, cmp.Or(entry.IP, entry.Hostname))
	}
	if len(entries) > control.MaxNamed {
		names = append(names, "...")
	}
	return strings.Join(names, ", ")
}

// ingressOf returns the assigned addresses followed by foreign entries. With ipMode VIP, kube-proxy expects
// packets with the address as destination.
func ingressOf(
	service *corev1.Service, addresses []netip.Addr, failed []validation.PortError, foreign []corev1.LoadBalancerIngress,
) []corev1.LoadBalancerIngress {
	var ingress []corev1.LoadBalancerIngress
	for _, address := range addresses {
		mode := corev1.LoadBalancerIPModeVIP
		ingress = append(ingress, corev1.LoadBalancerIngress{
			IP: address.String(), IPMode: &mode, Ports: portStatuses(service, address.String(), failed),
		})
	}
	ingress = append(ingress, foreign...)
	if present := service.Status.LoadBalancer.Ingress; equality.Semantic.DeepEqual(ingress, present) {
		return present
	}
	return ingress
}
