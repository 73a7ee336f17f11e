// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

type matchClaim func(millracev1beta1.VIPClaim) bool

func claimsNamed(namespace, name string) matchClaim {
	return func(claim millracev1beta1.VIPClaim) bool {
		return claim.Namespace == namespace && claim.Name == name
	}
}

func claimsWithUID(namespace, name string, uid types.UID) matchClaim {
	return func(claim millracev1beta1.VIPClaim) bool {
		return claim.Namespace == namespace && claim.Name == name && claim.UID == string(uid)
	}
}

func withoutClaims(claims []millracev1beta1.VIPClaim, match matchClaim) []millracev1beta1.VIPClaim {
	return slices.DeleteFunc(slices.Clone(claims), match)
}

// releaseAll releases all addresses. Conditions go last, because they show whose the finalizer was.
func (r *serviceReconciler) releaseAll(ctx context.Context, cached *corev1.Service) (again time.Duration, err error) {
	if !r.hasOwnState(cached) {
		return 0, nil
	}
	service := &corev1.Service{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(cached), service); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if service.UID != cached.UID || r.serves(service) || isOfAnotherOperator(service) || !r.hasOwnState(service) {
		// The cache lags behind; the Service's own event follows.
		return 0, nil
	}
	held := r.heldBy(service)
	if wait := r.classDelay(service, held); wait > 0 {
		return wait, nil
	}
	delete(r.conflicts, client.ObjectKeyFromObject(service))
	if err := r.clearIngress(ctx, service); err != nil {
		return 0, err
	}
	if again, err := r.releaseStep(ctx, service, held); again > 0 || err != nil {
		return again, err
	}
	if r.isOurs(service) {
		if err := r.removeFinalizers(ctx, service); err != nil {
			return 0, err
		}
	}
	return 0, r.clearConditions(ctx, service)
}

// classTimeout is how long an operator may take to record its class after it created the VIPs.
const classTimeout = time.Minute

// classDelay returns how long another operator may still take to record its class, or 0.
func (r *serviceReconciler) classDelay(service *corev1.Service, held []*millracev1beta1.VIP) (wait time.Duration) {
	_, isNoted := service.Annotations[millracev1beta1.AnnotationClass]
	if isNoted || service.DeletionTimestamp != nil ||
		service.Spec.Type != corev1.ServiceTypeLoadBalancer || service.Spec.LoadBalancerClass == nil {
		return 0
	}
	for _, vip := range held {
		wait = max(wait, vip.CreationTimestamp.Add(classTimeout).Sub(r.now()))
	}
	return min(wait, classTimeout)
}

func (r *serviceReconciler) heldBy(service *corev1.Service) []*millracev1beta1.VIP {
	mine := claimsWithUID(service.Namespace, service.Name, service.UID)
	return slices.DeleteFunc(r.vips.claimed(service.Namespace, service.Name), func(vip *millracev1beta1.VIP) bool {
		return !slices.ContainsFunc(vip.Spec.Claims, mine)
	})
}

func joinAddresses(vips []*millracev1beta1.VIP) string {
	addresses := make([]string, 0, len(vips))
	for _, vip := range vips {
		addresses = append(addresses, vip.Spec.Address)
	}
	return strings.Join(addresses, ", ")
}

// clearIngress removes addresses of VIPs that the Service has or had, and no other load balancer's.
func (r *serviceReconciler) clearIngress(ctx context.Context, service *corev1.Service) error {
	if !isKept(service) {
		return nil
	}
	base := service.DeepCopy()
	mine := claimsWithUID(service.Namespace, service.Name, service.UID)
	service.Status.LoadBalancer.Ingress = foreignIngress(service, func(address netip.Addr) bool {
		vip := r.vips.object(address)
		return vip != nil && slices.ContainsFunc(vip.Spec.Claims, mine) ||
			r.had.has(client.ObjectKeyFromObject(service), service.UID, address)
	})
	return r.patchServiceStatus(ctx, base, service)
}

func (r *serviceReconciler) clearConditions(ctx context.Context, service *corev1.Service) error {
	if !isKept(service) {
		return nil
	}
	base := service.DeepCopy()
	for _, condition := range serviceConditions {
		meta.RemoveStatusCondition(&service.Status.Conditions, condition)
	}
	return r.patchServiceStatus(ctx, base, service)
}

// releaseSurplus releases addresses after they were removed from the status.
func (r *serviceReconciler) releaseSurplus(
	ctx context.Context, service *corev1.Service, addresses []netip.Addr,
) (again time.Duration, err error) {
	var vips []*millracev1beta1.VIP
	for _, address := range addresses {
		if vip := r.vips.object(address); vip != nil {
			vips = append(vips, vip)
		}
	}
	return r.releaseStep(ctx, service, vips)
}

// release removes claims. Without other claims, the reclaim policy decides whether the VIP is deleted.
func (r *serviceReconciler) release(ctx context.Context, vip *millracev1beta1.VIP, match matchClaim) error {
	address, _ := addressOf(vip)
	for range maxPlans {
		if vip == nil || !slices.ContainsFunc(vip.Spec.Claims, match) {
			return nil
		}
		if done, err := r.tryRelease(ctx, vip.DeepCopy(), match); done || err != nil {
			return err
		}
		vip = r.vips.object(address)
	}
	return fmt.Errorf("release VIP of %s: %d conflicts in a row", address, maxPlans)
}

func (r *serviceReconciler) tryRelease(ctx context.Context, vip *millracev1beta1.VIP, match matchClaim) (bool, error) {
	retained, err := r.retains(ctx, vip)
	if err != nil {
		return false, err
	}
	if claims := claimsAfter(vip, match, retained); len(claims) > 0 || retained {
		vip.Spec.Claims = claims
		return r.updateClaims(ctx, vip)
	}
	err = r.client.Delete(ctx, vip, client.Preconditions{UID: &vip.UID, ResourceVersion: &vip.ResourceVersion})
	switch {
	case err == nil || apierrors.IsNotFound(err):
		r.vips.remove(vip)
		return true, nil
	case apierrors.IsConflict(err):
		address, _ := addressOf(vip)
		return false, r.refresh(ctx, address)
	}
	return false, fmt.Errorf("delete VIP %s: %w", vip.Name, err)
}

// retains applies the reclaim policy of the VIP or else the current one of its pool.
func (r *serviceReconciler) retains(ctx context.Context, vip *millracev1beta1.VIP) (bool, error) {
	if vip.Spec.ReclaimPolicy == millracev1beta1.ReclaimRetain || vip.Spec.Pool == "" {
		return vip.Spec.ReclaimPolicy == millracev1beta1.ReclaimRetain, nil
	}
	pool := &millracev1beta1.VIPPool{}
	if err := r.client.Get(ctx, types.NamespacedName{Name: vip.Spec.Pool}, pool); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("read VIPPool %s before VIP %s is released: %w", vip.Spec.Pool, vip.Name, err)
	}
	return pool.Spec.ReclaimPolicy == millracev1beta1.ReclaimRetain, nil
}

// claimsAfter returns the remaining claims. A retained VIP keeps its last claim without UID, so that any
// Service of that name gets the address.
func claimsAfter(vip *millracev1beta1.VIP, match matchClaim, retained bool) []millracev1beta1.VIPClaim {
	others := withoutClaims(vip.Spec.Claims, match)
	isLast := !slices.ContainsFunc(others, func(claim millracev1beta1.VIPClaim) bool { return claim.UID != "" })
	if !retained || !isLast {
		return others
	}
	kept := slices.Clone(vip.Spec.Claims)
	for i := range kept {
		if match(kept[i]) {
			kept[i].UID, kept[i].Release = "", nil
		}
	}
	return kept
}
