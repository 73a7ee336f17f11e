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

// finalizers are those that we put on a Service.
var finalizers = []string{millracev1beta1.Finalizer, millracev1beta1.SharedFinalizer}

// addFinalizers keeps a Service that has an address from vanishing before it has given it back, and
// notes the class that the address is for. It reports whether that changes the Service.
func addFinalizers(service *corev1.Service) (changed bool) {
	for _, finalizer := range finalizers {
		changed = controllerutil.AddFinalizer(service, finalizer) || changed
	}
	return noteClass(service, service.Spec.LoadBalancerClass) || changed
}

// ensureFinalizers writes the finalizers of a Service with addresses where they are not there.
func (r *serviceReconciler) ensureFinalizers(ctx context.Context, service *corev1.Service, plan ipam.Plan) error {
	if len(plan.Addresses) == 0 {
		return nil
	}
	base := service.DeepCopy()
	if !addFinalizers(service) {
		return nil
	}
	return r.unlessGoing(ctx, base, r.patchFinalizers(ctx, base, service, "adding the finalizers to"))
}

// unlessGoing returns the error of a write that adds finalizers. None can be added to what is being
// deleted.
func (r *serviceReconciler) unlessGoing(ctx context.Context, service *corev1.Service, err error) error {
	if apierrors.IsInvalid(err) && r.isGoing(ctx, service) {
		return errServiceChanged
	}
	return err
}

// noteClass writes the class that a Service has its address for into its annotation, none for nil. It
// reports whether that changes the Service.
func noteClass(service *corev1.Service, class *string) (changed bool) {
	noted, exists := service.Annotations[millracev1beta1.AnnotationClass]
	if class == nil {
		delete(service.Annotations, millracev1beta1.AnnotationClass)
		return exists
	}
	metav1.SetMetaDataAnnotation(&service.ObjectMeta, millracev1beta1.AnnotationClass, *class)
	return !exists || noted != *class
}

// isGoing asks the API server whether a Service is being deleted.
func (r *serviceReconciler) isGoing(ctx context.Context, service *corev1.Service) bool {
	live := &corev1.Service{}
	err := r.live.Get(ctx, client.ObjectKeyFromObject(service), live)
	return apierrors.IsNotFound(err) || err == nil && (live.UID != service.UID || live.DeletionTimestamp != nil)
}

// removeFinalizers lets a Service go.
func (r *serviceReconciler) removeFinalizers(ctx context.Context, service *corev1.Service) error {
	base, changed := service.DeepCopy(), false
	for _, finalizer := range finalizers {
		changed = controllerutil.RemoveFinalizer(service, finalizer) || changed
	}
	changed = noteClass(service, nil) || changed
	if !changed {
		return nil
	}
	return r.patchFinalizers(ctx, base, service, "removing the finalizers from")
}

func (r *serviceReconciler) patchFinalizers(ctx context.Context, base, service *corev1.Service, what string) error {
	if err := r.client.Patch(ctx, service, control.SameObject{Patch: client.StrategicMergeFrom(base), UID: base.UID}); err != nil {
		return fmt.Errorf("%s Service %s/%s: %w", what, service.Namespace, service.Name, changedMeanwhile(err))
	}
	r.written.note(service)
	return nil
}

// isOurs reports whether the finalizers of a Service are for us to take away. The shared one does
// not say so: every load balancer has the same. What does is our own, our class, or a trace of an
// address from us: Services of earlier versions have no more. Of these the condition goes last. It
// says so of no Service that is left alone because of another load balancer.
func (r *serviceReconciler) isOurs(service *corev1.Service) bool {
	alive := *service
	alive.DeletionTimestamp = nil
	assigned := meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionAddressAssigned)
	return desired.Class{Name: r.class}.Serves(&alive) ||
		slices.Contains(service.Finalizers, millracev1beta1.Finalizer) ||
		assigned != nil && assigned.Reason != millracev1beta1.ReasonForeignAddress ||
		len(r.heldBy(service)) > 0
}

// hasTraces reports whether anything of ours is left on a Service.
func (r *serviceReconciler) hasTraces(service *corev1.Service) bool {
	finalizer := slices.ContainsFunc(service.Finalizers, func(f string) bool { return slices.Contains(finalizers, f) })
	return len(r.heldBy(service)) > 0 || finalizer && r.isOurs(service) ||
		isKept(service) && meta.FindStatusCondition(service.Status.Conditions, millracev1beta1.ConditionAddressAssigned) != nil
}

// isKept reports whether a Service remains without our finalizers: it is not being deleted, or another
// controller's finalizer delays the deletion.
func isKept(service *corev1.Service) bool {
	return service.DeletionTimestamp == nil ||
		slices.ContainsFunc(service.Finalizers, func(f string) bool { return !slices.Contains(finalizers, f) })
}
