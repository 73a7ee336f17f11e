// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1alpha1 "github.com/millrace-lb/millrace/api/v1alpha1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
	"github.com/millrace-lb/millrace/operator/internal/served"
)

// Actions of events (events.k8s.io/v1, Event.action).
const (
	actionAssign  = "AssignAddress"
	actionRelease = "ReleaseAddress"
	actionServe   = "Serve"
	actionNumber  = "AssignNodeID"
	actionRotate  = "RotateTunnelKey"
	actionPeer    = "Peer"
)

// serviceConditions are the types of our conditions on a Service.
var serviceConditions = []string{millracev1alpha1.ConditionAddressAssigned, millracev1alpha1.ConditionServed}

// report writes the outcome of a plan to the Service's status and tells it in
// events where it differs from the last one.
func (r *serviceReconciler) report(ctx context.Context, service *corev1.Service, plan ipam.Plan, misunderstood error) error {
	base := service.DeepCopy()
	verdict, err := r.judge(ctx, service, plan)
	if err != nil {
		return err
	}
	conditions := []metav1.Condition{assignedCondition(plan, misunderstood)}
	if len(plan.Addresses) > 0 {
		conditions = append(conditions, servedCondition(verdict))
	} else {
		meta.RemoveStatusCondition(&service.Status.Conditions, millracev1alpha1.ConditionServed)
	}
	service.Status.LoadBalancer.Ingress = ingressOf(service, plan.Addresses, verdict.Ports)
	for _, condition := range conditions {
		condition.ObservedGeneration = service.Generation
		meta.SetStatusCondition(&service.Status.Conditions, condition)
	}
	if err := r.patchServiceStatus(ctx, base, service); err != nil {
		return err
	}
	for _, condition := range conditions {
		r.tell(service, meta.FindStatusCondition(base.Status.Conditions, condition.Type), condition)
	}
	return nil
}

// tell makes an event of a condition that differs from the one before. That a new
// Service is served is no news.
func (r *serviceReconciler) tell(service *corev1.Service, before *metav1.Condition, condition metav1.Condition) {
	if before != nil && before.Status == condition.Status && before.Reason == condition.Reason && before.Message == condition.Message {
		return
	}
	action, severity, message := actionAssign, corev1.EventTypeNormal, condition.Message
	if condition.Type == millracev1alpha1.ConditionServed {
		if before == nil && condition.Status == metav1.ConditionTrue && message == "" {
			return
		}
		action, message = actionServe, cmp.Or(message, "all that the Service asks for is served")
	}
	if condition.Status != metav1.ConditionTrue {
		severity = corev1.EventTypeWarning
	}
	r.recorder.Eventf(service, nil, severity, condition.Reason, action, "%s", message)
}

func (r *serviceReconciler) patchServiceStatus(ctx context.Context, base, service *corev1.Service) error {
	if equality.Semantic.DeepEqual(base.Status, service.Status) {
		return nil
	}
	// Conditions are merged by type: those of others stay as they are.
	patch := sameObject{Patch: client.StrategicMergeFrom(base), uid: base.UID}
	if err := r.client.Status().Patch(ctx, service, patch); err != nil {
		return fmt.Errorf("writing the status of Service %s/%s: %w", service.Namespace, service.Name, changedMeanwhile(err))
	}
	r.written.note(service)
	return nil
}

// ingressOf returns Service.status.loadBalancer.ingress, that which is there where
// nothing differs. The mode VIP tells kube-proxy that packets arrive with the
// address itself as destination.
func ingressOf(service *corev1.Service, addresses []netip.Addr, failed []served.PortError) []corev1.LoadBalancerIngress {
	var ingress []corev1.LoadBalancerIngress
	for _, address := range addresses {
		mode := corev1.LoadBalancerIPModeVIP
		ingress = append(ingress, corev1.LoadBalancerIngress{
			IP: address.String(), IPMode: &mode, Ports: portStatuses(service, address.String(), failed),
		})
	}
	if present := service.Status.LoadBalancer.Ingress; equality.Semantic.DeepEqual(ingress, present) {
		return present
	}
	return ingress
}

// assignedCondition is AddressAssigned for a plan.
func assignedCondition(plan ipam.Plan, misunderstood error) metav1.Condition {
	condition := metav1.Condition{
		Type:   millracev1alpha1.ConditionAddressAssigned,
		Status: metav1.ConditionTrue,
		Reason: millracev1alpha1.ReasonAssigned,
	}
	var sentences []string
	if misunderstood != nil {
		condition.Status, condition.Reason = metav1.ConditionFalse, millracev1alpha1.ReasonInvalid
		sentences = append(sentences, misunderstood.Error())
	} else {
		if !plan.Satisfied && len(plan.Refusals) > 0 {
			condition.Status, condition.Reason = metav1.ConditionFalse, reasonOf(plan.Refusals[0].Reason)
		}
		for _, refusal := range plan.Refusals {
			sentences = append(sentences, refusal.Message)
		}
	}
	if assigned := assignedSentence(plan); assigned != "" {
		sentences = append([]string{assigned}, sentences...)
	}
	condition.Message = truncate(strings.Join(sentences, "; "), maxMessage)
	return condition
}

func assignedSentence(plan ipam.Plan) string {
	if len(plan.Addresses) == 0 {
		return ""
	}
	texts := make([]string, 0, len(plan.Addresses))
	for _, address := range plan.Addresses {
		texts = append(texts, address.String())
	}
	return "has " + strings.Join(texts, ", ")
}

func reasonOf(reason ipam.Reason) string {
	switch reason {
	case ipam.PoolExhausted:
		return millracev1alpha1.ReasonExhausted
	case ipam.AddressInUse:
		return millracev1alpha1.ReasonAddressInUse
	case ipam.AddressNotInPool:
		return millracev1alpha1.ReasonAddressForbidden
	case ipam.PortConflict:
		return millracev1alpha1.ReasonPortConflict
	case ipam.NotRequested:
		return millracev1alpha1.ReasonInvalid
	}
	return millracev1alpha1.ReasonNoPool
}

// writtenVersions remembers, per Service, the version that was written last. A
// cache that shows an older one would make the same plan, and write and tell
// it, twice. Only the one worker of Services uses it.
type writtenVersions map[types.NamespacedName]string

func (w writtenVersions) note(service *corev1.Service) {
	w[client.ObjectKeyFromObject(service)] = service.ResourceVersion
}

// outdated reports whether a Service from the cache is older than what was
// written. The event of that write is still to come then.
func (w writtenVersions) outdated(service *corev1.Service) bool {
	written, ok := w[client.ObjectKeyFromObject(service)]
	if !ok {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(service.ResourceVersion, written)
	return err == nil && order < 0
}
