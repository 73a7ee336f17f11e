// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

const chaosVariable = "MILLRACE_CHAOS"

// ChaosFor returns the duration of MILLRACE_CHAOS, by default usual.
func ChaosFor(t *testing.T, usual time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(chaosVariable)
	if text == "" {
		return usual
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", chaosVariable, err)
	}
	return duration
}

// IsUnanswered reports whether the result of a request is unknown because the API server was stopped.
func IsUnanswered(err error) bool {
	answer := apierrors.APIStatus(nil)
	return !errors.As(err, &answer) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
}

// Wait returns after duration or when ctx ends.
func Wait(ctx context.Context, duration time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(duration):
	}
}

// AwaitIdle waits until no counted write occurred for the duration idle and the condition holds.
func (s *Server) AwaitIdle(t *testing.T, limit, idle time.Duration, counts func(Write) bool, condition func(context.Context) error) {
	t.Helper()
	writes, since := 0, time.Now()
	Eventually(t, limit, func(ctx context.Context) error {
		all, err := s.Writes()
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(write Write) bool { return !counts(write) })
		if len(all) != writes {
			writes, since = len(all), time.Now()
		}
		if time.Since(since) < idle {
			return fmt.Errorf("%d writes until now, the last one is %+v", writes, all[len(all)-1])
		}
		return condition(ctx)
	})
}

// Owners returns an error if addresses in the statuses of Services differ from the claims of VIPs, or if
// Services without a common sharing key share an address.
func Owners(ctx context.Context, c client.Client) error {
	services, vips := &corev1.ServiceList{}, &millracev1beta1.VIPList{}
	if err := errors.Join(c.List(ctx, services), c.List(ctx, vips)); err != nil {
		return err
	}
	var errs []error
	// claimed maps addresses to UIDs of claims, statuses to Services by status.
	claimed, statuses := map[string][]string{}, map[string][]*corev1.Service{}
	for i := range vips.Items {
		spec := &vips.Items[i].Spec
		for _, claim := range spec.Claims {
			claimed[spec.Address] = append(claimed[spec.Address], claim.UID)
		}
	}
	for i := range services.Items {
		service := &services.Items[i]
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			statuses[ingress.IP] = append(statuses[ingress.IP], service)
			if !slices.Contains(claimed[ingress.IP], string(service.UID)) {
				errs = append(errs, fmt.Errorf("%s is in the status of %s, and claimed by %v", ingress.IP, service.Name, claimed[ingress.IP]))
			}
		}
	}
	for _, address := range slices.Sorted(maps.Keys(claimed)) {
		if len(statuses[address]) != len(claimed[address]) {
			errs = append(errs, fmt.Errorf("%s is claimed by %d and told by %d Services", address, len(claimed[address]), len(statuses[address])))
		}
	}
	for _, address := range slices.Sorted(maps.Keys(statuses)) {
		key := statuses[address][0].Annotations[millracev1beta1.AnnotationSharingKey]
		for _, other := range statuses[address][1:] {
			if key == "" || other.Annotations[millracev1beta1.AnnotationSharingKey] != key {
				errs = append(errs, fmt.Errorf("%s has two owners: %s and %s", address, statuses[address][0].Name, other.Name))
			}
		}
	}
	return errors.Join(errs...)
}
