// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
)

// resolveStaleClaims handles the claims of a Service name whose UID no Service has: after a restore, or
// because a Service was deleted without its finalizers. The current Service inherits such a claim.
// Without one, the claim of a restored VIP becomes a reservation and any other claim is released.
func (r *serviceReconciler) resolveStaleClaims(ctx context.Context, key types.NamespacedName, service *corev1.Service) error {
	if service != nil && isOfAnotherOperator(service) {
		return nil
	}
	for _, vip := range r.vips.claimed(key.Namespace, key.Name) {
		i := slices.IndexFunc(vip.Spec.Claims, staleClaims(key, service))
		if i < 0 {
			continue
		}
		claim := vip.Spec.Claims[i]
		gone, err := r.confirmDeleted(ctx, key, types.UID(claim.UID))
		if err != nil {
			return err
		}
		if !gone {
			// The cache lags behind; the Service's own event follows.
			continue
		}
		if service != nil && r.serves(service) && claim.Release == nil {
			r.vips.inherit(vip, claim.UID)
			continue
		}
		if err := r.dropStale(ctx, vip, claim, service == nil && claim.Release == nil); err != nil {
			return err
		}
	}
	return nil
}

// staleClaims matches claims of the name with another UID. Claims without a UID are reservations.
func staleClaims(key types.NamespacedName, service *corev1.Service) matchClaim {
	current := ""
	if service != nil {
		current = string(service.UID)
	}
	return func(claim millracev1beta1.VIPClaim) bool {
		return claim.Namespace == key.Namespace && claim.Name == key.Name && claim.UID != "" && claim.UID != current
	}
}

func (r *serviceReconciler) confirmDeleted(ctx context.Context, key types.NamespacedName, uid types.UID) (bool, error) {
	if r.vips.isFormer(string(uid)) {
		return true, nil
	}
	service := &corev1.Service{}
	err := r.live.Get(ctx, key, service)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read Service %s before its address is released: %w", key, err)
	}
	return service.UID != uid, nil
}

func (r *serviceReconciler) dropStale(ctx context.Context, vip *millracev1beta1.VIP, claim millracev1beta1.VIPClaim, mayReserve bool) error {
	stale := claimsWithUID(claim.Namespace, claim.Name, types.UID(claim.UID))
	if mayReserve {
		restored, err := r.isRestored(ctx, vip)
		if err != nil {
			return err
		}
		if restored {
			return r.reserve(ctx, vip, stale)
		}
	}
	return r.release(ctx, vip, stale)
}

// isRestored reports whether no operator has written the VIP in this cluster. Field managers of a previous
// cluster, which backup tools may restore, are older than the object.
func (r *serviceReconciler) isRestored(ctx context.Context, vip *millracev1beta1.VIP) (bool, error) {
	stored := &millracev1beta1.VIP{}
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(vip), stored); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	for _, entry := range stored.ManagedFields {
		if entry.Manager == control.FieldOwner && entry.Subresource == "" &&
			entry.Time != nil && !entry.Time.Before(&stored.CreationTimestamp) {
			return false, nil
		}
	}
	return stored.UID == vip.UID, nil
}

func (r *serviceReconciler) reserve(ctx context.Context, vip *millracev1beta1.VIP, match matchClaim) error {
	address, _ := addressOf(vip)
	for range maxPlans {
		if vip == nil || !slices.ContainsFunc(vip.Spec.Claims, match) {
			return nil
		}
		next := vip.DeepCopy()
		next.Spec.Claims[slices.IndexFunc(next.Spec.Claims, match)].UID = ""
		if written, err := r.updateClaims(ctx, next); written || err != nil {
			return err
		}
		vip = r.vips.object(address)
	}
	return fmt.Errorf("reserve VIP of %s: %d conflicts in a row", address, maxPlans)
}

func (r *serviceReconciler) releaseStale(ctx context.Context, service *corev1.Service) error {
	key := client.ObjectKeyFromObject(service)
	for _, vip := range r.vips.claimed(key.Namespace, key.Name) {
		for _, claim := range vip.Spec.Claims {
			if !staleClaims(key, service)(claim) || !r.vips.isFormer(claim.UID) {
				continue
			}
			if err := r.dropStale(ctx, vip, claim, false); err != nil {
				return err
			}
		}
	}
	return nil
}
