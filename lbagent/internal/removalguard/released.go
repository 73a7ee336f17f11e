// SPDX-License-Identifier: Apache-2.0

package removalguard

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-lb/millrace/lbagent/internal/delta"
	"github.com/millrace-lb/millrace/lbagent/internal/model"
)

type serviceName struct{ namespace, name string }

// endpointSlices returns the current EndpointSlices and the previous ones of released Services. Foreground
// deletion removes them while the Service waits for its VIP, but the pods still serve connections until the
// routes are withdrawn.
func endpointSlices(before, objects *model.Snapshot, released map[serviceName]bool) []*discoveryv1.EndpointSlice {
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

func (g *Guard) releasedServices(objects *model.Snapshot) map[serviceName]bool {
	if !delta.IsSame(g.services, objects.Services) {
		g.services, g.deleted = objects.Services, deletedServices(objects.Services)
	}
	if len(g.deleted) == 0 {
		return nil
	}
	released := map[serviceName]bool{}
	for _, vip := range objects.VIPs {
		for i := range vip.Spec.Claims {
			claim := &vip.Spec.Claims[i]
			name := serviceName{claim.Namespace, claim.Name}
			if service := g.deleted[name]; service != nil && claim.UID == string(service.UID) {
				released[name] = true
			}
		}
	}
	return released
}

func deletedServices(services []*corev1.Service) map[serviceName]*corev1.Service {
	deleted := map[serviceName]*corev1.Service{}
	for _, service := range services {
		if service.DeletionTimestamp != nil && !isConfirmed(service) {
			deleted[serviceName{service.Namespace, service.Name}] = service
		}
	}
	return deleted
}
