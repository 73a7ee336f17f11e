// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/millrace-lb/millrace/api/desired"
	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

var finalizers = []string{millracev1beta1.Finalizer, millracev1beta1.SharedFinalizer}

// addFinalizers also records the class, and reports whether the Service changed.
func addFinalizers(service *corev1.Service) (changed bool) {
	for _, finalizer := range finalizers {
		changed = controllerutil.AddFinalizer(service, finalizer) || changed
	}
	return recordClass(service, service.Spec.LoadBalancerClass) || changed
}

func (r *serviceReconciler) ensureFinalizers(ctx context.Context, service *corev1.Service, plan ipam.Plan) error {
	if len(plan.Addresses) == 0 {
		return nil
	}
	base := service.DeepCopy()
	if !addFinalizers(service) {
		return nil
	}
	return r.convertDeleting(ctx, base, r.patchFinalizers(ctx, base, service, "add the finalizers to"))
}

// convertDeleting replaces the error by errServiceChanged for a Service that is being deleted, because
// the API server rejects new finalizers then.
func (r *serviceReconciler) convertDeleting(ctx context.Context, service *corev1.Service, err error) error {
	if apierrors.IsInvalid(err) && r.isDeleting(ctx, service) {
		return errServiceChanged
	}
	return err
}

// recordClass records the class in an annotation, or removes it for nil, and reports a change.
func recordClass(service *corev1.Service, class *string) (changed bool) {
	noted, exists := service.Annotations[millracev1beta1.AnnotationClass]
	if class == nil {
		delete(service.Annotations, millracev1beta1.AnnotationClass)
		return exists
	}
	metav1.SetMetaDataAnnotation(&service.ObjectMeta, millracev1beta1.AnnotationClass, *class)
	return !exists || noted != *class
}

// isDeleting reads from the API server whether a Service is being deleted.
func (r *serviceReconciler) isDeleting(ctx context.Context, service *corev1.Service) bool {
	live := &corev1.Service{}
	err := r.live.Get(ctx, client.ObjectKeyFromObject(service), live)
	return apierrors.IsNotFound(err) || err == nil && (live.UID != service.UID || live.DeletionTimestamp != nil)
}

func (r *serviceReconciler) removeFinalizers(ctx context.Context, service *corev1.Service) error {
	base, changed := service.DeepCopy(), false
	for _, finalizer := range finalizers {
		changed = controllerutil.RemoveFinalizer(service, finalizer) || changed
	}
	changed = recordClass(service, nil) || changed
	if !changed {
		return nil
	}
	return r.patchFinalizers(ctx, base, service, "remove the finalizers from")
}

func (r *serviceReconciler) patchFinalizers(ctx context.Context, base, service *corev1.Service, what string) error {
	if err := r.client.Patch(ctx, service, control.SameObject{Patch: client.StrategicMergeFrom(base), UID: base.UID}); err != nil {
		return fmt.Errorf("%s Service %s/%s: %w", what, service.Namespace, service.Name, changedMeanwhile(err))
	}
	r.written.record(service)
	return nil
}

// isOurs reports whether the operator may remove the finalizers of a Service. The shared finalizer does not
// show it, because every load balancer adds it; our finalizer, class or a trace of its address do. The
// condition AddressAssigned is removed last for that reason.
func (r *serviceReconciler) isOurs(service *corev1.Service) bool {
	alive := *service
	alive.DeletionTimestamp = nil
	assigned := meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionAddressAssigned)
	return desired.Class{Name: r.class}.Serves(&alive) ||
		slices.Contains(service.Finalizers, millracev1beta1.Finalizer) ||
		assigned != nil && assigned.Reason != millracev1beta1.ReasonForeignAddress ||
		len(r.heldBy(service)) > 0
}

func (r *serviceReconciler) hasOwnState(service *corev1.Service) bool {
	finalizer := slices.ContainsFunc(service.Finalizers, func(f string) bool { return slices.Contains(finalizers, f) })
	return len(r.heldBy(service)) > 0 || finalizer && r.isOurs(service) ||
		isKept(service) && meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionAddressAssigned) != nil
}

// isKept reports whether a Service still exists after our finalizers were removed.
func isKept(service *corev1.Service) bool {
	return service.DeletionTimestamp == nil ||
		slices.ContainsFunc(service.Finalizers, func(f string) bool { return !slices.Contains(finalizers, f) })
}
