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

// errServiceChanged says that a Service, or its namespace, is no longer, or not
// yet, what the cache shows. The event of that change enqueues the Service.
var errServiceChanged = errors.New("the Service has changed meanwhile")

// changedMeanwhile turns errors of writing to a Service that was deleted, or
// made again, into errServiceChanged.
func changedMeanwhile(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return errServiceChanged
	}
	return err
}

// carryOut makes the VIPs of a plan, or writes to those that it was made from.
// False says that the plan was made from what is no longer so: the ledger
// knows better now. Until then no other plan gives away what this one gives.
func (r *serviceReconciler) carryOut(
	ctx context.Context, service *corev1.Service, plan ipam.Plan, objects map[netip.Addr]*millracev1beta1.VIP,
) (carriedOut bool, err error) {
	r.ledger.promise(plan)
	key := client.ObjectKeyFromObject(service)
	delete(r.unkept, key)
	defer func() {
		if !r.ledger.settle(plan) {
			r.unkept[key] = plan.Addresses
			// What was promised may be free again, and there will be no event of it.
			for _, refused := range r.waiting.refused() {
				r.later(refused, brokenPromisePause)
			}
		}
		r.waiting.mayJoin()
		// Not only when the status is written, too.
		r.callJoining()
		r.turns.tell()
	}()
	// The status brings the finalizers of a Service whose addresses are new: one that vanishes before
	// that leaves a claim by which they are found (settleStale). Of a VIP that exists others may know.
	if len(plan.Bind) > 0 {
		if err := r.ensureFinalizers(ctx, service, plan); err != nil {
			return false, err
		}
	}
	carriedOut, err = r.writeVIPs(ctx, plan, objects)
	if err != nil {
		return false, errors.Join(err, r.reportFailure(ctx, service, err))
	}
	return carriedOut, nil
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

// createVIP creates a VIP. Its name is made from the address: of two operators
// that give the same address at once the API server lets one succeed.
func (r *serviceReconciler) createVIP(ctx context.Context, write ipam.Write) (bool, error) {
	vip := newVIP(write)
	err := r.client.Create(ctx, vip)
	if apierrors.IsAlreadyExists(err) {
		return false, r.refresh(ctx, write.Address)
	}
	if err != nil {
		return false, fmt.Errorf("creating VIP %s for Service %s: %w", vip.Name, write.Claim.Owner, err)
	}
	r.ledger.put(vip)
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

// bindVIP writes a claim to a VIP as the plan was made from it: the update
// carries that resource version, so that of two operators that give ports of
// one VIP at once the API server lets one succeed.
func (r *serviceReconciler) bindVIP(ctx context.Context, planned *millracev1beta1.VIP, claim ipam.Claim) (bool, error) {
	return r.updateClaims(ctx, boundVIP(planned, claim))
}

// boundVIP returns a VIP with a claim. It keeps its place; a new one, or one that was made
// manually, comes last.
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

// updateClaims writes a VIP; false says that it changed or went meanwhile.
func (r *serviceReconciler) updateClaims(ctx context.Context, vip *millracev1beta1.VIP) (bool, error) {
	address, _ := addressOf(vip)
	err := r.client.Update(ctx, vip)
	switch {
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return false, r.refresh(ctx, address)
	case err != nil:
		return false, fmt.Errorf("writing the claims of VIP %s: %w", vip.Name, err)
	}
	r.ledger.put(vip)
	return true, nil
}

// refresh puts the live state of an address into the ledger.
func (r *serviceReconciler) refresh(ctx context.Context, address netip.Addr) error {
	vip := &millracev1beta1.VIP{}
	err := r.live.Get(ctx, types.NamespacedName{Name: millracev1beta1.VIPName(address)}, vip)
	if apierrors.IsNotFound(err) {
		if known := r.ledger.object(address); known != nil {
			r.ledger.remove(known)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading VIP %s: %w", millracev1beta1.VIPName(address), err)
	}
	r.ledger.put(vip)
	return nil
}
