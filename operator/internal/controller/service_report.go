// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/convert"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

const (
	actionAssign  = "AssignAddress"
	actionRelease = "ReleaseAddress"
	actionServe   = "Serve"
)

var serviceConditions = []string{
	millracev1beta1.ConditionAddressAssigned, millracev1beta1.ConditionServed, millracev1beta1.ConditionServiceAnnounced,
}

type serviceResult struct {
	plan ipam.Plan
	// parseError is the first invalid field of the Service, or nil.
	parseError error
	// foreign are status entries that another load balancer wrote.
	foreign []corev1.LoadBalancerIngress
	// isForeign is true if the Service gets no address because of foreign entries.
	isForeign bool
}

// report writes a result to the Service's status, where foreign entries stay, adds finalizers if it has
// addresses, and emits events for changed conditions.
func (r *serviceReconciler) report(ctx context.Context, service *corev1.Service, result serviceResult) error {
	base := service.DeepCopy()
	verdict, err := r.judge(ctx, service, result)
	if err != nil {
		return err
	}
	conditions := []metav1.Condition{assignedCondition(result)}
	conflict := r.conflicts.of(service)
	if len(result.plan.Addresses) > 0 || conflict.Contested() {
		conditions = append(conditions, servedCondition(verdict))
	} else {
		meta.RemoveStatusCondition(&service.Status.Conditions, millracev1beta1.ConditionServed)
	}
	if len(verdict.Announcements) > 0 {
		conditions = append(conditions, announcedCondition(verdict.Announcements))
		r.announcements.put(verdict.Announcements)
	} else {
		meta.RemoveStatusCondition(&service.Status.Conditions, millracev1beta1.ConditionServiceAnnounced)
	}
	service.Status.LoadBalancer.Ingress = ingressOf(service, result.plan.Addresses, verdict.Ports, result.foreign)
	for _, condition := range conditions {
		condition.ObservedGeneration = service.Generation
		meta.SetStatusCondition(&service.Status.Conditions, condition)
	}
	if len(result.plan.Addresses) > 0 {
		addFinalizers(service)
	}
	if err := r.patchServiceStatus(ctx, base, service); err != nil {
		return err
	}
	conflict.RecordWrite(ownStatusOf(service).isSame, r.now())
	for _, condition := range conditions {
		// Served contains the problems of Announced.
		if condition.Type == millracev1beta1.ConditionServiceAnnounced {
			continue
		}
		r.emitOnce(service, base, condition, result)
	}
	// Some API servers apply only the status of such a patch.
	return r.ensureFinalizers(ctx, service, result.plan)
}

// reportFailure sets AddressAssigned to False after a failed write; the addresses stay.
func (r *serviceReconciler) reportFailure(ctx context.Context, service *corev1.Service, failure error) error {
	if ctx.Err() != nil || errors.Is(failure, errServiceChanged) {
		return nil
	}
	base := service.DeepCopy()
	condition := metav1.Condition{
		Type:               millracev1beta1.ConditionAddressAssigned,
		Status:             metav1.ConditionFalse,
		Reason:             millracev1beta1.ReasonWriteFailed,
		Message:            control.Truncate(fmt.Sprintf("the API server rejected a write, which is retried: %v", failure), control.MaxMessage),
		ObservedGeneration: service.Generation,
	}
	meta.SetStatusCondition(&service.Status.Conditions, condition)
	contested := r.conflicts.of(service)
	if contested.Observe(ownStatusOf(base), r.now()) > 0 {
		return nil
	}
	if len(r.heldBy(service)) > 0 {
		addFinalizers(service)
	}
	if err := r.patchServiceStatus(ctx, base, service); err != nil {
		return err
	}
	contested.RecordWrite(ownStatusOf(service).isSame, r.now())
	r.emitOnce(service, base, condition, serviceResult{})
	return nil
}

// emitOnce compares a condition with the last event, not with the status, which others may overwrite.
func (r *serviceReconciler) emitOnce(service, base *corev1.Service, condition metav1.Condition, result serviceResult) {
	before := meta.FindStatusCondition(base.Status.Conditions, condition.Type)
	conflict := r.conflicts.of(service)
	if reported, ok := conflict.reported[condition.Type]; ok {
		before = &reported
	}
	conflict.reported[condition.Type] = condition
	if before == nil && isPlain(condition, result) {
		return
	}
	r.emitTransition(service, before, condition)
}

// isPlain reports whether a new condition is a mere confirmation, which causes no event.
func isPlain(condition metav1.Condition, result serviceResult) bool {
	if condition.Status != metav1.ConditionTrue {
		return false
	}
	return condition.Message == "" ||
		condition.Type == millracev1beta1.ConditionAddressAssigned && condition.Message == assignedMessage(result.plan)
}

func (r *serviceReconciler) emitTransition(service *corev1.Service, before *metav1.Condition, condition metav1.Condition) {
	if before != nil && before.Status == condition.Status && before.Reason == condition.Reason && before.Message == condition.Message {
		return
	}
	action, severity, message := actionAssign, corev1.EventTypeNormal, condition.Message
	if condition.Type == millracev1beta1.ConditionServed {
		action, message = actionServe, cmp.Or(message, "all that the Service requests is served")
	}
	if condition.Status != metav1.ConditionTrue {
		severity = corev1.EventTypeWarning
	}
	r.recorder.Eventf(service, nil, severity, condition.Reason, action, "%s", message)
}

func (r *serviceReconciler) patchServiceStatus(ctx context.Context, base, service *corev1.Service) error {
	if equality.Semantic.DeepEqual(base.Status, service.Status) && equality.Semantic.DeepEqual(base.ObjectMeta, service.ObjectMeta) {
		return nil
	}
	// Conditions are merged by type. The ingress list is replaced as a whole, so the patch must fail if
	// another load balancer added an entry.
	var options []client.MergeFromOption
	if !equality.Semantic.DeepEqual(base.Status.LoadBalancer, service.Status.LoadBalancer) {
		options = append(options, client.MergeFromWithOptimisticLock{})
	}
	patch := control.SameObject{Patch: client.StrategicMergeFrom(base, options...), UID: base.UID}
	if err := r.client.Status().Patch(ctx, service, patch); err != nil {
		err = fmt.Errorf("write the status of Service %s/%s: %w", service.Namespace, service.Name, changedMeanwhile(err))
		return r.convertDeleting(ctx, base, err)
	}
	r.written.record(service)
	return nil
}

func (r *serviceReconciler) emitNotes(service *corev1.Service, plan ipam.Plan) {
	for _, note := range plan.Notes {
		severity, reason := corev1.EventTypeWarning, millracev1beta1.ReasonQuotaNearlyExceeded
		if note.Kind == ipam.SharedAddressUnavailable {
			severity, reason = corev1.EventTypeNormal, millracev1beta1.ReasonSharedAddressUnavailable
		}
		r.recorder.Eventf(service, nil, severity, reason, actionAssign, "%s", note.Message)
	}
}

func assignedCondition(result serviceResult) metav1.Condition {
	plan, parseError := result.plan, result.parseError
	condition := metav1.Condition{
		Type:   millracev1beta1.ConditionAddressAssigned,
		Status: metav1.ConditionTrue,
		Reason: millracev1beta1.ReasonAddressAssigned,
	}
	var sentences []string
	switch {
	case result.isForeign:
		condition.Status, condition.Reason = metav1.ConditionFalse, millracev1beta1.ReasonForeignAddress
		sentences = append(sentences, fmt.Sprintf("status.loadBalancer.ingress has %s, which is not a VIP of the Service: "+
			"another load balancer assigned it, and it is kept. To keep it with Millrace, add it to a VIPPool that selects the "+
			"Service. To get another address, stop that load balancer for the Service and remove the entry", namesOf(result.foreign)))
	case parseError != nil:
		condition.Status, condition.Reason = metav1.ConditionFalse, millracev1beta1.ReasonInvalid
		sentences = append(sentences, parseError.Error())
	default:
		if !plan.Satisfied && len(plan.Refusals) > 0 {
			condition.Status, condition.Reason = metav1.ConditionFalse, convert.Reason(plan.Refusals[0].Reason)
		}
		for _, refusal := range plan.Refusals {
			sentences = append(sentences, refusal.Message)
		}
	}
	if assigned := assignedMessage(plan); assigned != "" {
		sentences = append([]string{assigned}, sentences...)
	}
	condition.Message = control.Truncate(strings.Join(sentences, "; "), control.MaxMessage)
	return condition
}

func assignedMessage(plan ipam.Plan) string {
	if len(plan.Addresses) == 0 {
		return ""
	}
	texts := make([]string, 0, len(plan.Addresses))
	for _, address := range plan.Addresses {
		texts = append(texts, address.String())
	}
	return "has " + strings.Join(texts, ", ")
}

// writtenVersions records the resource version of the last write to each Service, since a cached older one
// would cause the same write and report again. Only the worker that holds the lock uses it.
type writtenVersions map[types.NamespacedName]string

func (w writtenVersions) record(service *corev1.Service) {
	w[client.ObjectKeyFromObject(service)] = service.ResourceVersion
}

func (w writtenVersions) outdated(service *corev1.Service) bool {
	written, ok := w[client.ObjectKeyFromObject(service)]
	if !ok {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(service.ResourceVersion, written)
	return err == nil && order < 0
}
