// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/ipam"
)

// errServiceChanged is returned for a stale Service or Namespace; the change's event enqueues it again.
var errServiceChanged = errors.New("the Service was changed concurrently")

// changedMeanwhile converts conflicts and NotFound errors of writes to a Service into errServiceChanged.
func changedMeanwhile(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return errServiceChanged
	}
	return err
}

// writePlan writes the VIPs of a plan, which other plans see as pending meanwhile. It returns false if the
// plan was made from stale VIPs; the cache then has the current ones.
func (r *serviceReconciler) writePlan(
	ctx context.Context, service *corev1.Service, plan ipam.Plan, objects map[netip.Addr]*millracev1beta1.VIP,
) (isWritten bool, err error) {
	r.vips.addPending(plan)
	key := client.ObjectKeyFromObject(service)
	delete(r.failedWrites, key)
	defer func() {
		if !r.vips.resolvePending(plan) {
			r.failedWrites[key] = plan.Addresses
			// The pending addresses may be free again, which causes no event.
			for _, refused := range r.waiting.refused() {
				r.later(refused, failedWritePause)
			}
		}
		r.waiting.resumeJoining()
		// Joining Services do not have to wait for the status write.
		r.requeueJoining()
		r.lock.broadcast()
	}()
	// If the Service is deleted before the status patch adds its finalizers, resolveStaleClaims handles
	// new VIPs. Existing VIPs may already be known to others, so the finalizers come first.
	if len(plan.Bind) > 0 {
		if err := r.ensureFinalizers(ctx, service, plan); err != nil {
			return false, err
		}
	}
	isWritten, err = r.writeVIPs(ctx, plan, objects)
	if err != nil {
		return false, errors.Join(err, r.reportFailure(ctx, service, err))
	}
	return isWritten, nil
}

func (r *serviceReconciler) writeVIPs(
	ctx context.Context, plan ipam.Plan, objects map[netip.Addr]*millracev1beta1.VIP,
) (bool, error) {
	for _, write := range plan.Create {
		if ok, err := r.createVIP(ctx, write); !ok || err != nil {
			return false, err
		}
	}
	for _, write := range plan.Bind {
		if ok, err := r.bindVIP(ctx, objects[write.Address], write.Claim); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// createVIP names the VIP by its address, so that only one of two operators can assign it.
func (r *serviceReconciler) createVIP(ctx context.Context, write ipam.Write) (bool, error) {
	vip := newVIP(write)
	err := r.client.Create(ctx, vip)
	if apierrors.IsAlreadyExists(err) {
		return false, r.refresh(ctx, write.Address)
	}
	if err != nil {
		return false, fmt.Errorf("create VIP %s for Service %s: %w", vip.Name, write.Claim.Owner, err)
	}
	r.vips.put(vip)
	return true, nil
}

func newVIP(write ipam.Write) *millracev1beta1.VIP {
	return &millracev1beta1.VIP{
		ObjectMeta: metav1.ObjectMeta{Name: millracev1beta1.VIPName(write.Address)},
		Spec: millracev1beta1.VIPSpec{
			Address: write.Address.String(),
			Pool:    write.Pool,
			Claims:  []millracev1beta1.VIPClaim{claimObject(write.Claim)},
		},
	}
}

// bindVIP updates the planned version, so that only one of two operators assigns ports of a VIP.
func (r *serviceReconciler) bindVIP(ctx context.Context, planned *millracev1beta1.VIP, claim ipam.Claim) (bool, error) {
	return r.updateClaims(ctx, boundVIP(planned, claim))
}

// boundVIP keeps the position of an existing claim and appends a new or formerly reserved one.
func boundVIP(planned *millracev1beta1.VIP, claim ipam.Claim) *millracev1beta1.VIP {
	vip := planned.DeepCopy()
	written := claimObject(claim)
	mine := claimsWithUID(claim.Namespace, claim.Name, types.UID(claim.UID))
	if i := slices.IndexFunc(vip.Spec.Claims, mine); i >= 0 {
		vip.Spec.Claims[i] = written
	} else {
		vip.Spec.Claims = append(withoutClaims(vip.Spec.Claims, claimsNamed(claim.Namespace, claim.Name)), written)
	}
	return vip
}

// updateClaims returns false if the VIP was changed or deleted meanwhile.
func (r *serviceReconciler) updateClaims(ctx context.Context, vip *millracev1beta1.VIP) (bool, error) {
	address, _ := addressOf(vip)
	err := r.client.Update(ctx, vip)
	switch {
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return false, r.refresh(ctx, address)
	case err != nil:
		return false, fmt.Errorf("write the claims of VIP %s: %w", vip.Name, err)
	}
	r.vips.put(vip)
	return true, nil
}

func (r *serviceReconciler) refresh(ctx context.Context, address netip.Addr) error {
	vip := &millracev1beta1.VIP{}
	err := r.live.Get(ctx, types.NamespacedName{Name: millracev1beta1.VIPName(address)}, vip)
	if apierrors.IsNotFound(err) {
		if known := r.vips.object(address); known != nil {
			r.vips.remove(known)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("read VIP %s: %w", millracev1beta1.VIPName(address), err)
	}
	r.vips.put(vip)
	return nil
}
