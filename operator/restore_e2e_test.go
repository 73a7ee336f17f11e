// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package operator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	millracev1beta1 "github.com/millrace-lb/millrace/api/v1beta1"
)

// restored checks that in a cluster restored from a backup of the VIPs, Services with other UIDs get their
// addresses.
func restored(t *testing.T, e *environment) {
	running := e.run(t)
	e.pool(t, "main", nil, "203.0.113.0/28")
	names := []string{"a", "b", "c", "d"}
	shared := annotated(millracev1beta1.AnnotationSharingKey, "dns")
	options := map[string][]option{"c": {shared}, "d": {shared, func(service *corev1.Service) { service.Spec.Ports[0].Port = 81 }}}
	want := map[string]string{"a": "203.0.113.0", "b": "203.0.113.1", "c": "203.0.113.2", "d": "203.0.113.2"}
	for _, name := range names {
		e.addresses(t, e.service(t, name, options[name]...), want[name])
	}
	backup := &millracev1beta1.VIPList{}
	must(t, e.client.List(t.Context(), backup))
	running.stop(t)
	e.clean(t)

	vips := func() {
		for i := range backup.Items {
			vip := backup.Items[i].DeepCopy()
			vip.ObjectMeta = metav1.ObjectMeta{Name: vip.Name, Labels: vip.Labels, Annotations: vip.Annotations}
			must(t, e.client.Create(t.Context(), vip))
		}
	}
	pools := func() { e.pool(t, "main", nil, "203.0.113.0/28") }
	services := func() {
		for _, name := range slices.Backward(names) {
			e.service(t, name, options[name]...)
		}
	}
	operator := func() { running = e.run(t) }
	reserved := func() {
		eventually(t, func(ctx context.Context) error {
			list := &millracev1beta1.VIPList{}
			if err := e.client.List(ctx, list); err != nil || len(list.Items) != len(backup.Items) {
				return errors.Join(err, fmt.Errorf("%d VIPs", len(list.Items)))
			}
			for _, vip := range list.Items {
				for _, claim := range vip.Spec.Claims {
					if claim.UID != "" {
						return fmt.Errorf("claims of VIP %s = %+v", vip.Name, vip.Spec.Claims)
					}
				}
			}
			return nil
		})
	}
	for _, order := range []struct {
		name  string
		steps []func()
	}{
		{"kubectl apply", []func(){pools, vips, services, operator}},
		{"Velero", []func(){services, pools, vips, operator}},
		{"operator running, VIPs restored first", []func(){operator, vips, reserved, services, pools}},
		{"operator running, VIPs restored after Services", []func(){operator, services, vips, pools}},
	} {
		t.Run(order.name, func(t *testing.T) {
			for _, step := range order.steps {
				step()
			}
			for _, name := range names {
				e.addresses(t, e.unmade(namespace, name), want[name])
			}
			running.stop(t)
			e.clean(t)
		})
	}
}

// keptByAnother checks that a deleted Service, kept by a foreign finalizer, does not show another's
// address.
func keptByAnother(t *testing.T, e *environment) {
	e.run(t)
	e.pool(t, "tiny", nil, "203.0.113.240/32")
	kept := e.service(t, "kept", func(service *corev1.Service) { service.Finalizers = []string{"example.com/other"} })
	e.addresses(t, kept, "203.0.113.240")
	must(t, e.client.Delete(t.Context(), kept))
	next := e.service(t, "next")
	e.addresses(t, next, "203.0.113.240")
	e.bound(t, "203.0.113.240", next)
	e.addresses(t, kept)
	eventually(t, func(ctx context.Context) error {
		if err := e.get(ctx, kept); err != nil {
			return err
		}
		if !slices.Equal(kept.Finalizers, []string{"example.com/other"}) || len(kept.Status.Conditions) > 0 {
			return fmt.Errorf("remaining: %v and %+v", kept.Finalizers, kept.Status.Conditions)
		}
		return nil
	})
}
