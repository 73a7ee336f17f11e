// SPDX-License-Identifier: Apache-2.0

package source

import (
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-lb/millrace/api/slim"
)

// someSelector replaces selectors, because agents read only whether a Service has one.
var someSelector = map[string]string{"some": "pods"}

func slimService(service *corev1.Service) {
	labels, annotations := service.Labels, service.Annotations
	service.ObjectMeta = namespaced(&service.ObjectMeta)
	service.Labels, service.Annotations = labels, annotations
	if len(service.Spec.Selector) > 0 {
		service.Spec.Selector = someSelector
	}
	service.Status = corev1.ServiceStatus{}
}

// isRelevantServiceChange reports whether a slim Service changed apart from its version. Status updates are more
// frequent than spec updates.
func isRelevantServiceChange(before, after *corev1.Service) bool {
	same := *before
	same.ResourceVersion = after.ResourceVersion
	return !equality.Semantic.DeepEqual(&same, after)
}

func namespaced(object *metav1.ObjectMeta) metav1.ObjectMeta {
	meta := slim.Meta(object)
	meta.Namespace = object.Namespace
	return meta
}

// maxShared bounds the number of shared values; beyond it, all are dropped.
const maxShared = 1 << 14

// shared deduplicates values that many endpoints have in common: node names, conditions and hints. Cached
// objects are immutable and can share them.
type shared struct {
	mu    sync.Mutex
	names map[string]*string
	hints map[string]*discoveryv1.EndpointHints
}

func newShared() *shared {
	return &shared{names: map[string]*string{}, hints: map[string]*discoveryv1.EndpointHints{}}
}

// slimSlice retains the fields that agents read. Endpoints dominate a large cluster's memory, and each has a
// dozen allocations.
func (s *shared) slimSlice(slice *discoveryv1.EndpointSlice) {
	slice.ObjectMeta = slim.EndpointSliceMeta(&slice.ObjectMeta)
	for i := range slice.Ports {
		slice.Ports[i].AppProtocol = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	addresses := firstAddresses(slice.Endpoints)
	endpoints := make([]discoveryv1.Endpoint, len(slice.Endpoints))
	for i := range slice.Endpoints {
		from := &slice.Endpoints[i]
		endpoints[i] = discoveryv1.Endpoint{
			Conditions: discoveryv1.EndpointConditions{
				Ready: sharedBool(from.Conditions.Ready), Serving: sharedBool(from.Conditions.Serving),
				Terminating: sharedBool(from.Conditions.Terminating),
			},
			NodeName: s.name(from.NodeName), Hints: s.shareHints(from.Hints),
		}
		if len(from.Addresses) > 0 {
			endpoints[i].Addresses = addresses[i : i+1 : i+1]
		}
	}
	slice.Endpoints = endpoints
}

// firstAddresses returns the first address of each endpoint, the only significant one (Endpoint.addresses,
// discovery.k8s.io/v1), as parts of one string.
func firstAddresses(endpoints []discoveryv1.Endpoint) []string {
	var all strings.Builder
	for i := range endpoints {
		if from := endpoints[i].Addresses; len(from) > 0 {
			all.WriteString(from[0])
		}
	}
	text, addresses := all.String(), make([]string, len(endpoints))
	for i := range endpoints {
		if from := endpoints[i].Addresses; len(from) > 0 {
			addresses[i], text = text[:len(from[0])], text[len(from[0]):]
		}
	}
	return addresses
}

var sharedTrue, sharedFalse = true, false

func sharedBool(value *bool) *bool {
	switch {
	case value == nil:
		return nil
	case *value:
		return &sharedTrue
	}
	return &sharedFalse
}

func (s *shared) name(name *string) *string {
	if name == nil {
		return nil
	}
	known := s.names[*name]
	if known == nil {
		if len(s.names) >= maxShared {
			clear(s.names)
		}
		known = name
		s.names[*name] = known
	}
	return known
}

// shareHints shares hints for one zone. With zone hints, node hints are ignored.
func (s *shared) shareHints(hints *discoveryv1.EndpointHints) *discoveryv1.EndpointHints {
	if hints == nil || len(hints.ForZones) != 1 {
		return hints
	}
	zone := hints.ForZones[0].Name
	known := s.hints[zone]
	if known == nil {
		if len(s.hints) >= maxShared {
			clear(s.hints)
		}
		known = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		s.hints[zone] = known
	}
	return known
}
