// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
	"github.com/millrace-lb/millrace/operator/internal/control"
)

// withdrawalTime is how long agents and routers have to apply the withdrawal of a VIP before it is
// reassigned.
const withdrawalTime = 3 * time.Second

// advanceRelease returns the next phase and its duration, or 0 if the claim is to be removed. Durations are
// bounded even if the clock of a previous operator was ahead.
func advanceRelease(
	release *millracev1beta1.ClaimRelease, delay time.Duration, now time.Time,
) (_ *millracev1beta1.ClaimRelease, again time.Duration) {
	begin := func(phase millracev1beta1.ReleasePhase) *millracev1beta1.ClaimRelease {
		// The API server stores microseconds.
		return &millracev1beta1.ClaimRelease{Phase: phase, Since: metav1.NewMicroTime(now.Truncate(time.Microsecond))}
	}
	switch {
	case delay <= 0:
		return nil, 0
	case release == nil:
		return begin(millracev1beta1.ReleaseDraining), delay
	case release.Phase == millracev1beta1.ReleaseWithdrawn:
		return release, max(0, min(withdrawalTime, release.Since.Add(withdrawalTime).Sub(now)))
	}
	if left := min(delay, release.Since.Add(delay).Sub(now)); left > 0 {
		return release, left
	}
	return begin(millracev1beta1.ReleaseWithdrawn), withdrawalTime
}

func (r *serviceReconciler) delayFor(service *corev1.Service) time.Duration {
	if _, confirmed := service.Annotations[millracev1beta1.AnnotationConfirmRemoval]; confirmed {
		return 0
	}
	return r.releaseDelay
}

// releaseStep advances the release by one step and returns the delay until the next, or 0 when done.
func (r *serviceReconciler) releaseStep(
	ctx context.Context, service *corev1.Service, vips []*millracev1beta1.VIP,
) (again time.Duration, err error) {
	mine := claimsWithUID(service.Namespace, service.Name, service.UID)
	delay := r.delayFor(service)
	var released []*millracev1beta1.VIP
	for _, vip := range vips {
		i := slices.IndexFunc(vip.Spec.Claims, mine)
		if i < 0 {
			continue
		}
		before := vip.Spec.Claims[i].Release
		release, wait := advanceRelease(before, delay, r.now())
		if wait == 0 {
			if err := r.release(ctx, vip, mine); err != nil {
				return 0, err
			}
			released = append(released, vip)
			continue
		}
		again = earlierDelay(again, wait)
		if release == before {
			continue
		}
		next := vip.DeepCopy()
		next.Spec.Claims[i].Release = release
		written, err := r.updateClaims(ctx, next)
		switch {
		case err != nil:
			return 0, err
		case !written:
			// The VIP changed meanwhile and is retried at once.
			again = earlierDelay(again, control.FirstPause)
		case before == nil:
			r.recorder.Eventf(service, vip, corev1.EventTypeNormal, millracev1beta1.ReasonReleasing, actionRelease,
				"%s is announced with GRACEFUL_SHUTDOWN for %s, then withdrawn", vip.Spec.Address, delay)
		}
	}
	if len(released) > 0 && service.DeletionTimestamp == nil {
		r.recorder.Eventf(service, nil, corev1.EventTypeNormal, millracev1beta1.ReasonAddressReleased, actionRelease,
			"released %s", joinAddresses(released))
	}
	return again, nil
}

func earlierDelay(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
