// SPDX-License-Identifier: Apache-2.0

package removalguard

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

// serviceName names a Service.
type serviceName struct{ namespace, name string }

// endpointSlices returns the EndpointSlices to work by: those that there are, and those before of
// Services that are being released. Foreground deletion removes a Service's EndpointSlices while
// the Service waits for its VIP. Their pods live, and what they serve is not to be cut before the
// routes are withdrawn.
func endpointSlices(before, objects *model.Snapshot) []*discoveryv1.EndpointSlice {
	released := releasedServices(objects)
	if before == nil || len(released) == 0 {
		return objects.EndpointSlices
	}
	there := map[string]bool{}
	for _, slice := range objects.EndpointSlices {
		if released[serviceOf(slice)] {
			there[key(slice)] = true
		}
	}
	result := objects.EndpointSlices
	for _, slice := range before.EndpointSlices {
		if released[serviceOf(slice)] && !there[key(slice)] {
			result = append(slices.Clip(result), slice)
		}
	}
	return result
}

func serviceOf(slice *discoveryv1.EndpointSlice) serviceName {
	return serviceName{slice.Namespace, slice.Labels[discoveryv1.LabelServiceName]}
}

// releasedServices are the Services that are being deleted and still have a VIP. One whose removal
// is confirmed is not waited for.
func releasedServices(objects *model.Snapshot) map[serviceName]bool {
	var deleted map[serviceName]*corev1.Service
	for _, service := range objects.Services {
		if service.DeletionTimestamp == nil || isConfirmed(service) {
			continue
		}
		if deleted == nil {
			deleted = map[serviceName]*corev1.Service{}
		}
		deleted[serviceName{service.Namespace, service.Name}] = service
	}
	if deleted == nil {
		return nil
	}
	released := map[serviceName]bool{}
	for _, vip := range objects.VIPs {
		for i := range vip.Spec.Claims {
			claim := &vip.Spec.Claims[i]
			name := serviceName{claim.Namespace, claim.Name}
			if service := deleted[name]; service != nil && claim.UID == string(service.UID) {
				released[name] = true
			}
		}
	}
	return released
}
