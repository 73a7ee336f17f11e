// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// renamedPort returns the port of a slice for a Service port whose name is missing in the slice, because one
// object was renamed before the other. It is the slice's port with the number of targetPort whose name no port
// of the Service has. For a named targetPort, both objects must have only one port of the protocol. Slices of
// Services without a selector are written by users, so that a missing name is their intent or error.
func (b *endpoints) renamedPort(slice *discoveryv1.EndpointSlice, name portName) (uint16, bool) {
	service := b.previous.objects.services[ServiceName{slice.Namespace, slice.Labels[discoveryv1.LabelServiceName]}]
	if service == nil || len(service.Spec.Selector) == 0 || len(service.Spec.Ports) >= manyPorts {
		return 0, false
	}
	ports := map[portName]*corev1.ServicePort{}
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		if protocol, _ := protocolNumber(port.Protocol); protocol == name.protocol {
			ports[portName{port.Name, protocol}] = port
		}
	}
	if ports[name] == nil {
		return 0, false
	}
	target := ports[name].TargetPort
	numbers, others := map[uint16]bool{}, 0
	for i := range slice.Ports {
		number, of, ok := readPort(&slice.Ports[i])
		if !ok || of.protocol != name.protocol {
			continue
		}
		if ports[of] == nil {
			numbers[number] = true
		} else {
			others++
		}
	}
	if target.Type == intstr.Int {
		number := uint16(target.IntVal)
		return number, numbers[number]
	}
	if len(numbers) == 1 && others == 0 && len(ports) == 1 {
		return slices.Collect(maps.Keys(numbers))[0], true
	}
	return 0, false
}
